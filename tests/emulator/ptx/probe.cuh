// Twin of tests/validation/ptx/probe.cuh: what the emulator models and no kernel uses yet.
#pragma once

#include "ptx/base.cuh"

namespace dgj::probe {

using emu::Where;

struct Place {
    i32 at[5];
};

template <u32 kRank>
DGJ_DEVICE emu::Coordinates coordinates(const Place& p) {
    return {kRank, {p.at[0], p.at[1], p.at[2], p.at[3], p.at[4]}};
}
template <u32 kRank>
DGJ_DEVICE void load_tile(u32 shared, const TensorMap* map, const Place& p, u32 barrier, Where w = {}) {
    emu::load_tile(shared, map, coordinates<kRank>(p), barrier, 1u << emu::place().rank, w);
}
template <u32 kRank>
DGJ_DEVICE void store_tile(const TensorMap* map, u32 shared, const Place& p, Where w = {}) {
    emu::store_tile(map, shared, coordinates<kRank>(p), emu::Combine::kReplace, w);
}
DGJ_DEVICE void add_tile(const TensorMap* map, u32 shared, i32 inner, i32 row, Where w = {}) {
    emu::store_tile(map, shared, {2, {inner, row}}, emu::Combine::kAdd, w);
}
DGJ_DEVICE void store_bytes(void* global, u32 shared, u32 bytes, Where w = {}) {
    emu::store_bytes(global, shared, bytes, emu::Combine::kReplace, emu::ElementType::kU32, w);
}
DGJ_DEVICE void add_bytes(void* global, u32 shared, u32 bytes, Where w = {}) {
    emu::store_bytes(global, shared, bytes, emu::Combine::kAdd, emu::ElementType::kU32, w);
}

}  // namespace dgj::probe
