// The bulk copy engine: tiled loads and stores by tensor map, and plain copies between the blocks of a
// cluster.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE void prefetch_map(const TensorMap* map, Where w = {}) { emu::prefetch_map(map, w); }
DGJ_DEVICE void load_tile(u32 shared, const TensorMap* map, i32 inner, i32 row, u32 barrier, Where w = {}) {
    emu::load_tile(shared, map, {2, {inner, row}}, barrier, 1u << emu::place().rank, w);
}
DGJ_DEVICE void load_tile3(u32 shared, const TensorMap* map, i32 inner, i32 row, i32 matrix, u32 barrier,
                           Where w = {}) {
    emu::load_tile(shared, map, {3, {inner, row, matrix}}, barrier, 1u << emu::place().rank, w);
}
DGJ_DEVICE void load_tile4(u32 shared, const TensorMap* map, i32 inner, i32 first, i32 second, i32 third,
                           u32 barrier, Where w = {}) {
    emu::load_tile(shared, map, {4, {inner, first, second, third}}, barrier, 1u << emu::place().rank, w);
}
DGJ_DEVICE void load_tile_multicast(u32 shared, const TensorMap* map, i32 inner, i32 row, u32 barrier,
                                    u16 mask, Where w = {}) {
    emu::load_tile(shared, map, {2, {inner, row}}, barrier, mask, w);
}
DGJ_DEVICE void load_bytes(u32 shared, const void* global, u32 bytes, u32 barrier, Where w = {}) {
    emu::load_bytes(shared, global, bytes, barrier, w);
}
DGJ_DEVICE void store_tile(const TensorMap* map, u32 shared, i32 inner, i32 row, Where w = {}) {
    emu::store_tile(map, shared, {2, {inner, row}}, emu::Combine::kReplace, w);
}
DGJ_DEVICE void store_tile4(const TensorMap* map, u32 shared, i32 inner, i32 first, i32 second, i32 third,
                            Where w = {}) {
    emu::store_tile(map, shared, {4, {inner, first, second, third}}, emu::Combine::kReplace, w);
}
DGJ_DEVICE void commit_stores(Where w = {}) { emu::commit_stores(w); }
template <u32 kPending>
DGJ_DEVICE void wait_stores_read(Where w = {}) {
    emu::wait_stores(kPending, true, w);
}
DGJ_DEVICE void wait_stores_done(Where w = {}) { emu::wait_stores(0, false, w); }
DGJ_DEVICE void fence_async_shared(Where w = {}) { emu::fence_async_shared(w); }
DGJ_DEVICE void copy_to_block(u32 destination, u32 source, u32 bytes, u32 barrier, u32 rank, Where w = {}) {
    emu::copy_to_block(destination, source, bytes, barrier, rank, w);
}

}  // namespace dgj::ptx
