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

// cp.async of kBytes, of which `valid` are read.
template <u32 kBytes>
DGJ_DEVICE void copy_async(u32 shared, const void* global, u32 valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
                 "r"(valid)
                 : "memory");
}

// ---- prefetches to L2 ----

DGJ_DEVICE void prefetch_tile(const TensorMap* map, i32 inner, i32 row) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(inner),
                 "r"(row)
                 : "memory");
}
DGJ_DEVICE void prefetch_bytes(const void* global, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
DGJ_DEVICE void prefetch_line(const void* global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

// ---- warp collectives ----

struct Shuffled {
    u32 value, in_range;
};
#define DGJ_SHUFFLE(mode)                                                  \
    DGJ_DEVICE Shuffled shuffle_##mode(u32 v, u32 b, u32 c, u32 members) { \
        Shuffled r;                                                        \
        asm volatile("{\n.reg .pred p;\nshfl.sync." #mode                  \
                     ".b32 %0|p, %2, %3, %4, %5;\n"                        \
                     "selp.u32 %1, 1, 0, p;\n}"                            \
                     : "=r"(r.value), "=r"(r.in_range)                     \
                     : "r"(v), "r"(b), "r"(c), "r"(members));              \
        return r;                                                          \
    }
DGJ_SHUFFLE(up)
DGJ_SHUFFLE(down)
DGJ_SHUFFLE(bfly)
DGJ_SHUFFLE(idx)
#undef DGJ_SHUFFLE

DGJ_DEVICE u32 ballot(u32 v, u32 members) {
    u32 r;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\nvote.sync.ballot.b32 %0, p, %2;\n}"
                 : "=r"(r)
                 : "r"(v), "r"(members));
    return r;
}
#define DGJ_VOTE(mode)                                                              \
    DGJ_DEVICE u32 vote_##mode(u32 v, u32 members) {                                \
        u32 r;                                                                      \
        asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nvote.sync." #mode \
                     ".pred q, p, %2;\nselp.u32 %0, 1, 0, q;\n}"                    \
                     : "=r"(r)                                                      \
                     : "r"(v), "r"(members));                                       \
        return r;                                                                   \
    }
DGJ_VOTE(all)
DGJ_VOTE(any)
DGJ_VOTE(uni)
#undef DGJ_VOTE

DGJ_DEVICE u32 match_any(u32 v, u32 members) {
    u32 r;
    asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(members));
    return r;
}
DGJ_DEVICE u32 match_all(u32 v, u32 members) {
    u32 r;
    asm volatile("match.all.sync.b32 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(members));
    return r;
}
DGJ_DEVICE u32 elect(u32 members) {  // the leader's lane
    u32 r;
    asm volatile("{\n.reg .pred p;\nelect.sync %0|p, %1;\n}" : "=r"(r) : "r"(members));
    return r;
}

// ---- 8x8 matrices ----

template <u32 kCount, bool kTransposed>
DGJ_DEVICE void load_matrix(u32 (&t)[4], u32 address) {
    if constexpr (kCount == 1 && !kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                     : "=r"(t[0])
                     : "r"(address)
                     : "memory");
    else if constexpr (kCount == 1 && kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                     : "=r"(t[0])
                     : "r"(address)
                     : "memory");
    else if constexpr (kCount == 2 && !kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(t[0]), "=r"(t[1])
                     : "r"(address)
                     : "memory");
    else if constexpr (kCount == 2 && kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(t[0]), "=r"(t[1])
                     : "r"(address)
                     : "memory");
    else if constexpr (kCount == 4 && !kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(t[0]), "=r"(t[1]), "=r"(t[2]), "=r"(t[3])
                     : "r"(address)
                     : "memory");
    else if constexpr (kCount == 4 && kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(t[0]), "=r"(t[1]), "=r"(t[2]), "=r"(t[3])
                     : "r"(address)
                     : "memory");
}

template <u32 kCount, bool kTransposed>
DGJ_DEVICE void store_matrix(u32 address, const u32 (&t)[4]) {
    if constexpr (kCount == 1 && !kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(address), "r"(t[0])
                     : "memory");
    else if constexpr (kCount == 1 && kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(address), "r"(t[0])
                     : "memory");
    else if constexpr (kCount == 2 && !kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(t[0]),
                     "r"(t[1])
                     : "memory");
    else if constexpr (kCount == 2 && kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
                     "r"(t[0]), "r"(t[1])
                     : "memory");
    else if constexpr (kCount == 4 && !kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                     "r"(t[0]), "r"(t[1]), "r"(t[2]), "r"(t[3])
                     : "memory");
    else if constexpr (kCount == 4 && kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                     "r"(t[0]), "r"(t[1]), "r"(t[2]), "r"(t[3])
                     : "memory");
}

// ---- strong operations ----

// Relaxed, .cta scope, on this block's shared memory.
DGJ_DEVICE u32 shared_add(u32 p, u32 v) {
    u32 old;
    asm volatile("atom.shared.cta.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(p), "r"(v) : "memory");
    return old;
}
DGJ_DEVICE u32 shared_min(u32 p, u32 v) {
    u32 old;
    asm volatile("atom.shared.cta.min.u32 %0, [%1], %2;" : "=r"(old) : "r"(p), "r"(v) : "memory");
    return old;
}
DGJ_DEVICE u32 shared_max(u32 p, u32 v) {
    u32 old;
    asm volatile("atom.shared.cta.max.s32 %0, [%1], %2;" : "=r"(old) : "r"(p), "r"(v) : "memory");
    return old;
}
DGJ_DEVICE u32 shared_and(u32 p, u32 v) {
    u32 old;
    asm volatile("atom.shared.cta.and.b32 %0, [%1], %2;" : "=r"(old) : "r"(p), "r"(v) : "memory");
    return old;
}
DGJ_DEVICE u32 shared_or(u32 p, u32 v) {
    u32 old;
    asm volatile("atom.shared.cta.or.b32 %0, [%1], %2;" : "=r"(old) : "r"(p), "r"(v) : "memory");
    return old;
}
DGJ_DEVICE u32 shared_xor(u32 p, u32 v) {
    u32 old;
    asm volatile("atom.shared.cta.xor.b32 %0, [%1], %2;" : "=r"(old) : "r"(p), "r"(v) : "memory");
    return old;
}
DGJ_DEVICE u32 shared_exch(u32 p, u32 v) {
    u32 old;
    asm volatile("atom.shared.cta.exch.b32 %0, [%1], %2;" : "=r"(old) : "r"(p), "r"(v) : "memory");
    return old;
}
DGJ_DEVICE u32 shared_cas(u32 p, u32 compare, u32 v) {
    u32 old;
    asm volatile("atom.shared.cta.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "r"(p), "r"(compare), "r"(v)
                 : "memory");
    return old;
}
DGJ_DEVICE void shared_red_add(u32 p, u32 v) {
    asm volatile("red.shared.cta.add.u32 [%0], %1;" ::"r"(p), "r"(v) : "memory");
}
DGJ_DEVICE u32 shared_read_acquire(u32 p) {
    u32 v;
    asm volatile("atom.acquire.shared.cta.or.b32 %0, [%1], 0;" : "=r"(v) : "r"(p) : "memory");
    return v;
}
DGJ_DEVICE void shared_add_release(u32 p, u32 v) {
    asm volatile("red.release.shared.cta.add.u32 [%0], %1;" ::"r"(p), "r"(v) : "memory");
}
DGJ_DEVICE void fence_cta() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
// Relaxed, .gpu scope, on global memory.
DGJ_DEVICE u32 global_add(u32* p, u32 v) {
    u32 old;
    asm volatile("atom.global.gpu.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}
DGJ_DEVICE u64 global_add64(u64* p, u64 v) {
    u64 old;
    asm volatile("atom.global.gpu.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}
DGJ_DEVICE u32 global_max(u32* p, u32 v) {
    u32 old;
    asm volatile("atom.global.gpu.max.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}
DGJ_DEVICE void global_red_add(float* p, float v) {
    asm volatile("red.global.gpu.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}

// ---- another block's shared memory ----

DGJ_DEVICE u32 remote_load(u32 address, u32 rank) {
    u32 v;
    asm volatile(
        "{\n.reg .b32 far;\nmapa.shared::cluster.u32 far, %1, %2;\nld.shared::cluster.u32 %0, [far];\n}"
        : "=r"(v)
        : "r"(address), "r"(rank)
        : "memory");
    return v;
}
DGJ_DEVICE void remote_store(u32 address, u32 rank, u32 v) {
    asm volatile(
        "{\n.reg .b32 far;\nmapa.shared::cluster.u32 far, %0, %1;\nst.shared::cluster.u32 [far], %2;\n}" ::
            "r"(address),
        "r"(rank), "r"(v)
        : "memory");
}
DGJ_DEVICE void remote_arrive_release(u32 barrier, u32 rank) {  // hands over data, .cluster scope
    asm volatile(
        "{\n.reg .b32 far;\nmapa.shared::cluster.u32 far, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [far];\n}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}
DGJ_DEVICE void wait_acquire_cluster(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain_%=:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// ---- wgmma: wgmma<types and layouts>(d, a, b, accumulate) is generated ----

template <bool kIntegers>
struct AccumulatorOf {
    using Type = float;
};
template <>
struct AccumulatorOf<true> {
    using Type = i32;
};
DGJ_DEVICE float bits_as_float(float v) { return v; }
DGJ_DEVICE float bits_as_float(i32 v) { return __int_as_float(v); }

// A matrix descriptor from its fields in bytes; swizzle: 0, 128, 64 or 32 bytes.
DGJ_DEVICE u64 descriptor(u32 shared, u32 leading, u32 stride, u32 swizzle) {
    const u64 mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    return (u64)((shared & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | mode << 62;
}

}  // namespace dgj::probe
