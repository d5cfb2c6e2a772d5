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

template <u32 kBytes>
DGJ_DEVICE void copy_async(u32 shared, const void* global, u32 valid, Where w = {}) {
    emu::copy_async(shared, global, kBytes, valid, w);
}

// ---- prefetches to L2 ----

DGJ_DEVICE void prefetch_tile(const TensorMap* map, i32 inner, i32 row, Where w = {}) {
    emu::prefetch_tile(map, {2, {inner, row}}, w);
}
DGJ_DEVICE void prefetch_bytes(const void* global, u32 bytes, Where w = {}) {
    emu::prefetch_bytes(global, bytes, w);
}
DGJ_DEVICE void prefetch_line(const void* global, Where w = {}) { emu::prefetch_global(global, w); }

// ---- warp collectives ----

struct Shuffled {
    u32 value, in_range;
};
DGJ_DEVICE Shuffled shuffled(emu::Shuffle how, u32 v, u32 b, u32 c, u32 members, Where w) {
    const emu::Shuffled r = emu::shuffle(how, v, b, c, members, w);
    return {r.value, r.in_range};
}
DGJ_DEVICE Shuffled shuffle_up(u32 v, u32 b, u32 c, u32 members, Where w = {}) {
    return shuffled(emu::Shuffle::kUp, v, b, c, members, w);
}
DGJ_DEVICE Shuffled shuffle_down(u32 v, u32 b, u32 c, u32 members, Where w = {}) {
    return shuffled(emu::Shuffle::kDown, v, b, c, members, w);
}
DGJ_DEVICE Shuffled shuffle_bfly(u32 v, u32 b, u32 c, u32 members, Where w = {}) {
    return shuffled(emu::Shuffle::kXor, v, b, c, members, w);
}
DGJ_DEVICE Shuffled shuffle_idx(u32 v, u32 b, u32 c, u32 members, Where w = {}) {
    return shuffled(emu::Shuffle::kIndex, v, b, c, members, w);
}
DGJ_DEVICE u32 ballot(u32 v, u32 members, Where w = {}) {
    return emu::vote(emu::Vote::kBallot, v != 0, members, w);
}
DGJ_DEVICE u32 vote_all(u32 v, u32 members, Where w = {}) {
    return emu::vote(emu::Vote::kAll, v != 0, members, w);
}
DGJ_DEVICE u32 vote_any(u32 v, u32 members, Where w = {}) {
    return emu::vote(emu::Vote::kAny, v != 0, members, w);
}
DGJ_DEVICE u32 vote_uni(u32 v, u32 members, Where w = {}) {
    return emu::vote(emu::Vote::kUniform, v != 0, members, w);
}
DGJ_DEVICE u32 match_any(u32 v, u32 members, Where w = {}) { return emu::match_any(v, members, w); }
DGJ_DEVICE u32 match_all(u32 v, u32 members, Where w = {}) { return emu::match_all(v, members, w); }
DGJ_DEVICE u32 elect(u32 members, Where w = {}) { return emu::elect(members, w); }

// ---- 8x8 matrices ----

template <u32 kCount, bool kTransposed>
DGJ_DEVICE void load_matrix(u32 (&t)[4], u32 address, Where w = {}) {
    emu::load_matrix(t, kCount, kTransposed, address, w);
}
template <u32 kCount, bool kTransposed>
DGJ_DEVICE void store_matrix(u32 address, const u32 (&t)[4], Where w = {}) {
    emu::store_matrix(address, t, kCount, kTransposed, w);
}

// ---- strong operations ----

DGJ_DEVICE u32 on_shared(emu::Combine how, emu::ElementType type, u32 p, u32 v, Where w, u32 compare = 0,
                         emu::Order order = emu::Order::kRelaxed) {
    return (u32)emu::atomic_shared({how, type, order, emu::Scope::kCta}, p, emu::place().rank, v, compare, w);
}
DGJ_DEVICE u32 shared_add(u32 p, u32 v, Where w = {}) {
    return on_shared(emu::Combine::kAdd, emu::ElementType::kU32, p, v, w);
}
DGJ_DEVICE u32 shared_min(u32 p, u32 v, Where w = {}) {
    return on_shared(emu::Combine::kMin, emu::ElementType::kU32, p, v, w);
}
DGJ_DEVICE u32 shared_max(u32 p, u32 v, Where w = {}) {
    return on_shared(emu::Combine::kMax, emu::ElementType::kI32, p, v, w);
}
DGJ_DEVICE u32 shared_and(u32 p, u32 v, Where w = {}) {
    return on_shared(emu::Combine::kAnd, emu::ElementType::kU32, p, v, w);
}
DGJ_DEVICE u32 shared_or(u32 p, u32 v, Where w = {}) {
    return on_shared(emu::Combine::kOr, emu::ElementType::kU32, p, v, w);
}
DGJ_DEVICE u32 shared_xor(u32 p, u32 v, Where w = {}) {
    return on_shared(emu::Combine::kXor, emu::ElementType::kU32, p, v, w);
}
DGJ_DEVICE u32 shared_exch(u32 p, u32 v, Where w = {}) {
    return on_shared(emu::Combine::kExchange, emu::ElementType::kU32, p, v, w);
}
DGJ_DEVICE u32 shared_cas(u32 p, u32 compare, u32 v, Where w = {}) {
    return on_shared(emu::Combine::kCompareAndSwap, emu::ElementType::kU32, p, v, w, compare);
}
DGJ_DEVICE void shared_red_add(u32 p, u32 v, Where w = {}) {
    on_shared(emu::Combine::kAdd, emu::ElementType::kU32, p, v, w);
}
DGJ_DEVICE u32 shared_read_acquire(u32 p, Where w = {}) {
    return on_shared(emu::Combine::kOr, emu::ElementType::kU32, p, 0, w, 0, emu::Order::kAcquire);
}
DGJ_DEVICE void shared_add_release(u32 p, u32 v, Where w = {}) {
    on_shared(emu::Combine::kAdd, emu::ElementType::kU32, p, v, w, 0, emu::Order::kRelease);
}
DGJ_DEVICE void fence_cta(Where w = {}) { emu::fence(emu::Scope::kCta, w); }

DGJ_DEVICE u32 global_add(u32* p, u32 v, Where w = {}) {
    return (u32)emu::atomic_global({emu::Combine::kAdd, emu::ElementType::kU32}, p, v, 0, w);
}
DGJ_DEVICE u64 global_add64(u64* p, u64 v, Where w = {}) {
    return emu::atomic_global({emu::Combine::kAdd, emu::ElementType::kU64}, p, v, 0, w);
}
DGJ_DEVICE u32 global_max(u32* p, u32 v, Where w = {}) {
    return (u32)emu::atomic_global({emu::Combine::kMax, emu::ElementType::kU32}, p, v, 0, w);
}
DGJ_DEVICE void global_red_add(float* p, float v, Where w = {}) {
    emu::atomic_global({emu::Combine::kAdd, emu::ElementType::kF32}, p, __builtin_bit_cast(u32, v), 0, w);
}

// ---- another block's shared memory ----

DGJ_DEVICE u32 remote_load(u32 address, u32 rank, Where w = {}) {
    u32 v;
    emu::load_remote(&v, address, rank, sizeof v, w);
    return v;
}
DGJ_DEVICE void remote_store(u32 address, u32 rank, u32 v, Where w = {}) {
    emu::store_remote(address, rank, &v, sizeof v, w);
}
DGJ_DEVICE void remote_arrive_release(u32 barrier, u32 rank, Where w = {}) {
    emu::barrier_arrive(barrier, rank, w, emu::Scope::kCluster);
}
DGJ_DEVICE void wait_acquire_cluster(u32 barrier, u32 parity, Where w = {}) {
    emu::barrier_wait(barrier, parity, w, emu::Scope::kCluster);
}

// ---- wgmma ----

template <bool kIntegers>
struct AccumulatorOf {
    using Type = float;
};
template <>
struct AccumulatorOf<true> {
    using Type = i32;
};
DGJ_DEVICE float bits_as_float(float v) { return v; }
DGJ_DEVICE float bits_as_float(i32 v) { return __builtin_bit_cast(float, v); }

DGJ_DEVICE u64 descriptor(u32 shared, u32 leading, u32 stride, u32 swizzle) {
    const u64 mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    return (u64)((shared & 0x3FFFF) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | mode << 62;
}

template <u32 kTypeA, u32 kTypeB, u32 kMnMajorA, u32 kMnMajorB>
DGJ_DEVICE emu::Wgmma form(u32 n) {
    return {n, (emu::MatrixType)kTypeA, (emu::MatrixType)kTypeB, kMnMajorA != 0, kMnMajorB != 0};
}
template <u32 kTypeA, u32 kTypeB, u32 kMnMajorA, u32 kMnMajorB, class T, u32 kCount>
DGJ_DEVICE void wgmma(T (&d)[kCount], u64 a, u64 b, u32 accumulate, Where w = {}) {
    emu::wgmma(d, form<kTypeA, kTypeB, kMnMajorA, kMnMajorB>(2 * kCount), a, nullptr, b, accumulate, w);
}
template <u32 kTypeA, u32 kTypeB, u32 kMnMajorA, u32 kMnMajorB, class T, u32 kCount>
DGJ_DEVICE void wgmma(T (&d)[kCount], const u32 (&a)[4], u64 b, u32 accumulate, Where w = {}) {
    emu::wgmma(d, form<kTypeA, kTypeB, kMnMajorA, kMnMajorB>(2 * kCount), 0, a, b, accumulate, w);
}

}  // namespace dgj::probe
