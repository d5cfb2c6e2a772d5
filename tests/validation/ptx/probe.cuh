// Instructions that the emulator models and no kernel uses yet, for the micro-kernels alone. The emulator's
// twin is tests/emulator/ptx/probe.cuh.
#pragma once

#include "ptx/base.cuh"

namespace dgj::probe {

struct Place {  // coordinates of a box, innermost first
    i32 at[5];
};

template <u32 kRank>
DGJ_DEVICE void load_tile(u32 shared, const TensorMap* map, const Place& p, u32 barrier) {
    if constexpr (kRank == 1) {
        asm volatile(
            "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], "
            "[%3];" ::"r"(shared),
            "l"(map), "r"(p.at[0]), "r"(barrier)
            : "memory");
    } else if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
            "%4}], [%5];" ::"r"(shared),
            "l"(map), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(barrier)
            : "memory");
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
            "%4, %5}], [%6];" ::"r"(shared),
            "l"(map), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(barrier)
            : "memory");
    } else {
        static_assert(kRank == 5);
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
            "%4, %5, %6}], [%7];" ::"r"(shared),
            "l"(map), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(p.at[4]), "r"(barrier)
            : "memory");
    }
}

template <u32 kRank>
DGJ_DEVICE void store_tile(const TensorMap* map, u32 shared, const Place& p) {
    if constexpr (kRank == 1) {
        asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%1}], [%2];" ::"l"(map),
                     "r"(p.at[0]), "r"(shared)
                     : "memory");
    } else if constexpr (kRank == 3) {
        asm volatile(
            "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
            "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(shared)
            : "memory");
    } else if constexpr (kRank == 4) {
        asm volatile(
            "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
            "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(shared)
            : "memory");
    } else {
        static_assert(kRank == 5);
        asm volatile(
            "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(
                map),
            "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(p.at[4]), "r"(shared)
            : "memory");
    }
}

DGJ_DEVICE void add_tile(const TensorMap* map, u32 shared, i32 inner, i32 row) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
            map),
        "r"(inner), "r"(row), "r"(shared)
        : "memory");
}
DGJ_DEVICE void store_bytes(void* global, u32 shared, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared),
                 "r"(bytes)
                 : "memory");
}
DGJ_DEVICE void add_bytes(void* global, u32 shared, u32 bytes) {  // as u32
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" ::"l"(global),
                 "r"(shared), "r"(bytes)
                 : "memory");
}

}  // namespace dgj::probe
