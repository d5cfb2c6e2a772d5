// The bulk copy engine: tiled loads and stores by tensor map, and plain copies between the blocks of a
// cluster.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Box at (inner, row) to `shared`, completing its bytes on `barrier`. Elements outside the tensor are written
// as zero.
DGJ_DEVICE void load_tile(u32 shared, const TensorMap* map, i32 inner, i32 row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(shared),
        "l"(map), "r"(inner), "r"(row), "r"(barrier)
        : "memory");
}
// The same from a tensor of matrices.
DGJ_DEVICE void load_tile3(u32 shared, const TensorMap* map, i32 inner, i32 row, i32 matrix, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
        "l"(map), "r"(inner), "r"(row), "r"(matrix), "r"(barrier)
        : "memory");
}
// The same of four dimensions.
DGJ_DEVICE void load_tile4(u32 shared, const TensorMap* map, i32 inner, i32 first, i32 second, i32 third,
                           u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared),
        "l"(map), "r"(inner), "r"(first), "r"(second), "r"(third), "r"(barrier)
        : "memory");
}
// Box at (inner, row) into every block of `mask`, at the same offset, on the barrier at the same offset.
DGJ_DEVICE void load_tile_multicast(u32 shared, const TensorMap* map, i32 inner, i32 row, u32 barrier,
                                    u16 mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
        "l"(map), "r"(inner), "r"(row), "r"(barrier), "h"(mask)
        : "memory");
}
// Contiguous bytes to `shared`, completing on `barrier`: both addresses and the size are multiples of 16.
DGJ_DEVICE void load_bytes(u32 shared, const void* global, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared),
        "l"(global), "r"(bytes), "r"(barrier)
        : "memory");
}
// Box from `shared` to (inner, row); parts outside the tensor are not written.
DGJ_DEVICE void store_tile(const TensorMap* map, u32 shared, i32 inner, i32 row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
                 "r"(inner), "r"(row), "r"(shared)
                 : "memory");
}
DGJ_DEVICE void store_tile4(const TensorMap* map, u32 shared, i32 inner, i32 first, i32 second, i32 third) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
        "r"(inner), "r"(first), "r"(second), "r"(third), "r"(shared)
        : "memory");
}
DGJ_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// At most kPending of this thread's groups of stores still read shared memory.
template <u32 kPending>
DGJ_DEVICE void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// All of this thread's stores are complete.
DGJ_DEVICE void wait_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes this thread's plain writes to shared memory visible to the copy engine and the tensor core.
DGJ_DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// From this block's shared memory to the same or another offset in block `rank`, completing on its barrier at
// `barrier`.
DGJ_DEVICE void copy_to_block(u32 destination, u32 source, u32 bytes, u32 barrier, u32 rank) {
    asm volatile(
        "{\n.reg .b32 to, bar;\nmapa.shared::cluster.u32 to, %0, %4;\nmapa.shared::cluster.u32 bar, %3, %4;\n"
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%1], %2, [bar];\n}" ::
            "r"(destination),
        "r"(source), "r"(bytes), "r"(barrier), "r"(rank)
        : "memory");
}

}  // namespace dgj::ptx
