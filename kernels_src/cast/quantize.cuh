// BF16 / FP16 / FP32 -> E4M3 with one scale for each 1 x kGranK (cast_per_token) or kGranRows x kGranK
// (cast_per_block).
//
//     amax = largest |x| of the block
//     sf   = max(amax, 1e-4) / 448        correctly rounded FP32; UE8M0: rounded up to a power of two
//     q    = e4m3(x * (1 / sf))           every step rounded to nearest even; saturated at +-448
//
// What is not finite spoils its own block only. NaN: sf and every q are NaN. Infinity without NaN: sf is
// infinite, so finite elements become 0 and infinite ones NaN. Packed, both have exponent 255 (NaN in UE8M0).
// Columns past the last one count as zero and are not written.
//
// The work is a copy with a little arithmetic: what counts is bytes in flight. Each thread issues all of its
// 16-byte loads before it looks at the first, x is read once, and a warp's loads and stores are contiguous.
// A CTA for each tile keeps all SMs full; with fewer CTAs, for fewer SMs, each does several tiles in turn.
//
// The plan type `Cast` holds: kXType, kGranRows, kGranK, kScale, kThreads, kUnits (16-byte units of x that a
// thread has in flight) and kSpan (how many of them share a scale).
#pragma once

#include "cast/cast_args.cuh"
#include "ptx/base.cuh"
#include "ptx/cast.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/sync.cuh"

namespace dgj {

enum class XType { kBF16, kF16, kF32 };
enum class ScaleFormat { kF32, kUe8m0F32, kUe8m0Packed };

// ---- one unit: 16 bytes of x ----------------------------------------------------------------------------

template <class Cast>
struct Unit {
    static constexpr bool kWide = Cast::kXType == XType::kF32;
    static constexpr u32 kBytes = kWide ? 4 : 2;  // of an element
    static constexpr u32 kElements = 16 / kBytes;

    // Largest |x| as bits with the sign cleared. As unsigned integers they are ordered like the values, with
    // infinity and NaN on top. 16-bit types: two independent halves, which `amax_value` joins.
    DGJ_DEVICE static u32 larger(u32 a, u32 b) {
        if constexpr (kWide) return ptx::max_u32(a, b);
        else return ptx::max_u16x2(a, b);
    }
    DGJ_DEVICE static u32 amax(const Word4& x) {
        constexpr u32 kMagnitude = kWide ? 0x7fffffffu : 0x7fff7fffu;
        return larger(larger(x.x & kMagnitude, x.y & kMagnitude), larger(x.z & kMagnitude, x.w & kMagnitude));
    }
    DGJ_DEVICE static float amax_value(u32 bits) {
        if constexpr (kWide) return ptx::from_bits(bits);
        else return element((u16)ptx::max_u32(bits & 0xffffu, bits >> 16));
    }

    DGJ_DEVICE static float element(u16 bits) {
        if constexpr (Cast::kXType == XType::kBF16) return ptx::from_bf16(bits);
        else return ptx::from_f16(bits);
    }

    DGJ_DEVICE static u32 scale_two(float low, float high, float inverse) {
        return ptx::pack_e4m3(ptx::mul(low, inverse), ptx::mul(high, inverse));
    }
    DGJ_DEVICE static u32 quantize_two(u32 word, float inverse) {  // 16-bit types
        return scale_two(element((u16)word), element((u16)(word >> 16)), inverse);
    }
    // kElements bytes; 32-bit x fills q.x only.
    DGJ_DEVICE static ptx::Word2 quantize(const Word4& x, float inverse) {
        if constexpr (kWide) {
            return {scale_two(ptx::from_bits(x.x), ptx::from_bits(x.y), inverse) |
                        scale_two(ptx::from_bits(x.z), ptx::from_bits(x.w), inverse) << 16,
                    0};
        } else {
            return {quantize_two(x.x, inverse) | quantize_two(x.y, inverse) << 16,
                    quantize_two(x.z, inverse) | quantize_two(x.w, inverse) << 16};
        }
    }

    // Elements past the last column read as zero.
    template <bool kVector>
    DGJ_DEVICE static Word4 load(const CastArgs& args, u32 row, u32 col) {
        Word4 v = {0, 0, 0, 0};
        if (row >= args.rows || col >= args.cols) return v;
        const u8* p = (const u8*)args.x + (i64)row * args.ldx + (i64)col * kBytes;
        if constexpr (kVector) {
            v = ptx::load_once_word4(p);
        } else {
            u32 words[4] = {0, 0, 0, 0};
            DGJ_UNROLL
            for (u32 i = 0; i < kElements; ++i) {
                if (col + i >= args.cols) continue;
                if constexpr (kWide) words[i] = ptx::load_global_u32(p + i * 4);
                else words[i / 2] |= (u32)ptx::load_global_u16(p + i * 2) << (i % 2 * 16);
            }
            v = {words[0], words[1], words[2], words[3]};
        }
        return v;
    }

    template <bool kVector>
    DGJ_DEVICE static void store(const CastArgs& args, u32 row, u32 col, ptx::Word2 q) {
        if (row >= args.rows || col >= args.cols) return;
        u8* p = (u8*)args.q + (i64)row * args.ldq + col;
        if constexpr (kVector && kWide) {
            ptx::store_global_u32(p, q.x);
        } else if constexpr (kVector) {
            ptx::store_global_word2(p, q);
        } else {
            DGJ_UNROLL
            for (u32 i = 0; i < kElements; ++i) {
                if (col + i < args.cols) ptx::store_global_u8(p + i, (i < 4 ? q.x : q.y) >> (i % 4 * 8));
            }
        }
    }
};

// ---- one scale ------------------------------------------------------------------------------------------

struct Scale {
    float sf, inverse;
};

template <class Cast>
DGJ_DEVICE Scale scale_of(float amax) {
    constexpr u32 kInfinity = 0x7f800000u, kNan = 0x7fc00000u;
    if (ptx::to_bits(amax) > kInfinity) return {ptx::from_bits(kNan), ptx::from_bits(kNan)};
    float sf = ptx::div(ptx::max(amax, 1e-4f), 448.0f);  // 448: largest e4m3
    if constexpr (Cast::kScale != ScaleFormat::kF32) {
        sf = ptx::from_bits((ptx::to_bits(sf) + 0x7fffffu) & kInfinity);  // 2.2e-7 at least: not subnormal
    }
    return {sf, ptx::reciprocal(sf)};
}

template <class Cast>
DGJ_DEVICE void store_scale(const CastArgs& args, u32 row, u32 block, float sf) {
    if constexpr (Cast::kScale == ScaleFormat::kUe8m0Packed) {
        u8* p = (u8*)args.sf + ((i64)row * args.sf_stride_row + (i64)(block / 4) * args.sf_stride_block) * 4;
        ptx::store_global_u8(p + block % 4, ptx::to_bits(sf) >> 23);
        if ((block + 1) * Cast::kGranK >= args.cols) {  // the last block also clears what is left of its word
            for (u32 i = block % 4 + 1; i < 4; ++i) ptx::store_global_u8(p + i, 0);
        }
    } else {
        u8* p = (u8*)args.sf + ((i64)row * args.sf_stride_row + (i64)block * args.sf_stride_block) * 4;
        ptx::store_global_u32(p, ptx::to_bits(sf));
    }
}

// ---- 1 x kGranK -----------------------------------------------------------------------------------------

// A slot is one thread's part of a scale block: kSpan units, kLanes * 16 bytes apart, so that the kLanes
// neighbouring threads of a block touch contiguous bytes, and many elements share the price of a scale.
// Rows, padded to whole scale blocks, are a sequence of slots; a thread takes kSets of them, kThreads apart.
template <class Cast, bool kVector>
DGJ_DEVICE void cast_rows(const CastArgs& args, u32 tile) {
    using U = Unit<Cast>;
    constexpr u32 kSpan = Cast::kSpan, kLanes = Cast::kGranK / (U::kElements * kSpan);
    static_assert(kLanes >= 1 && 32 % kLanes == 0 && kLanes * kSpan * U::kElements == Cast::kGranK);
    static_assert(Cast::kThreads % 32 == 0 && Cast::kUnits % kSpan == 0);
    constexpr u32 kSets = Cast::kUnits / kSpan, kStep = kLanes * U::kElements;
    // The element-wise path takes one slot after the other and reads x twice instead of keeping it: it is
    // slow anyway, and stays small.
    constexpr u32 kBatch = kVector ? kSets : 1;

    u32 slot = tile * (Cast::kThreads * kSets) + ptx::thread_index();
    DGJ_NO_UNROLL
    for (u32 done = 0; done < kSets; done += kBatch) {
        u32 row[kBatch], block[kBatch], col[kBatch];
        Word4 x[kBatch][kVector ? kSpan : 1];
        DGJ_UNROLL
        for (u32 i = 0; i < kBatch; ++i, slot += Cast::kThreads) {
            row[i] = ptx::mul_shift(slot, args.per_row.multiplier, args.per_row.shift);
            const u32 in_row = slot - row[i] * args.per_row.divisor;
            block[i] = in_row / kLanes;
            col[i] = block[i] * Cast::kGranK + in_row % kLanes * U::kElements;
            if constexpr (kVector) {
                DGJ_UNROLL
                for (u32 j = 0; j < kSpan; ++j) {
                    x[i][j] = U::template load<true>(args, row[i], col[i] + j * kStep);
                }
            }
        }
        DGJ_UNROLL
        for (u32 i = 0; i < kBatch; ++i) {
            u32 amax = 0;
            if constexpr (kVector) {
                DGJ_UNROLL
                for (u32 j = 0; j < kSpan; ++j) amax = U::larger(amax, U::amax(x[i][j]));
            } else {
                DGJ_NO_UNROLL
                for (u32 j = 0; j < kSpan; ++j) {
                    x[0][0] = U::template load<false>(args, row[i], col[i] + j * kStep);
                    amax = U::larger(amax, U::amax(x[0][0]));
                }
            }
            DGJ_UNROLL
            for (u32 mask = kLanes / 2; mask > 0; mask /= 2) {
                amax = U::larger(amax, ptx::shuffle_xor(amax, mask));
            }
            const Scale scale = scale_of<Cast>(U::amax_value(amax));
            if constexpr (kVector) {
                DGJ_UNROLL
                for (u32 j = 0; j < kSpan; ++j) {
                    const ptx::Word2 q = U::quantize(x[i][j], scale.inverse);
                    U::template store<true>(args, row[i], col[i] + j * kStep, q);
                }
            } else {
                DGJ_NO_UNROLL
                for (u32 j = 0; j < kSpan; ++j) {
                    x[0][0] = U::template load<false>(args, row[i], col[i] + j * kStep);
                    const ptx::Word2 q = U::quantize(x[0][0], scale.inverse);
                    U::template store<false>(args, row[i], col[i] + j * kStep, q);
                }
            }
            if (ptx::thread_index() % kLanes == 0 && row[i] < args.rows) {
                store_scale<Cast>(args, row[i], block[i], scale.sf);
            }
        }
    }
}

template <class Cast>
DGJ_DEVICE void cast_per_token(const CastArgs& args) {
    ptx::wait_for_prior_kernels();
    DGJ_NO_UNROLL
    for (u32 tile = ptx::block_index(); tile < args.tiles; tile += ptx::grid_size()) {
        if (args.vector) cast_rows<Cast, true>(args, tile);
        else cast_rows<Cast, false>(args, tile);
    }
}

// ---- kGranRows x kGranK ---------------------------------------------------------------------------------

// kWarps warps hold one scale block in their registers. Shared memory: one word a warp.
template <class Cast, bool kVector>
DGJ_DEVICE void cast_blocks(const CastArgs& args, u32 tile) {
    using U = Unit<Cast>;
    constexpr u32 kLanes = Cast::kGranK / U::kElements;  // units of one row of the block
    constexpr u32 kBlockUnits = Cast::kGranRows * kLanes;
    constexpr u32 kWarps = kBlockUnits / (32 * Cast::kUnits);
    static_assert(kWarps >= 1 && kWarps * 32 * Cast::kUnits == kBlockUnits);
    static_assert(Cast::kThreads % (32 * kWarps) == 0);

    const u32 warp = ptx::thread_index() / 32, local = ptx::thread_index() % (32 * kWarps);
    const u32 block = tile * (Cast::kThreads / (32 * kWarps)) + warp / kWarps;
    const u32 row_block = ptx::mul_shift(block, args.per_row.multiplier, args.per_row.shift);
    const u32 col_block = block - row_block * args.per_row.divisor;
    const u32 row0 = row_block * Cast::kGranRows + local / kLanes;
    const u32 col = col_block * Cast::kGranK + local % kLanes * U::kElements;
    constexpr u32 kRowStep = 32 * kWarps / kLanes;  // rows that one pass of the kWarps warps covers
    static_assert(kRowStep * kLanes == 32 * kWarps);

    u32 amax = 0;
    Word4 x[kVector ? Cast::kUnits : 1];  // the element-wise path reads x a second time instead of keeping it
    if constexpr (kVector) {
        DGJ_UNROLL
        for (u32 i = 0; i < Cast::kUnits; ++i) x[i] = U::template load<true>(args, row0 + i * kRowStep, col);
        DGJ_UNROLL
        for (u32 i = 0; i < Cast::kUnits; ++i) amax = U::larger(amax, U::amax(x[i]));
    } else {
        DGJ_NO_UNROLL
        for (u32 i = 0; i < Cast::kUnits; ++i) {
            amax = U::larger(amax, U::amax(U::template load<false>(args, row0 + i * kRowStep, col)));
        }
    }
    DGJ_UNROLL
    for (u32 mask = 16; mask > 0; mask /= 2) amax = U::larger(amax, ptx::shuffle_xor(amax, mask));
    if constexpr (kWarps > 1) {
        const u32 base = ptx::shared_base();
        if (ptx::thread_index() % 32 == 0) ptx::store_shared_u32(base + warp * 4, amax);
        ptx::sync_block();
        const u32 first_word = base + warp / kWarps * kWarps * 4;
        DGJ_UNROLL
        for (u32 i = 0; i < kWarps; ++i) amax = U::larger(amax, ptx::load_shared_u32(first_word + i * 4));
    }

    const Scale scale = scale_of<Cast>(U::amax_value(amax));
    if constexpr (kVector) {
        DGJ_UNROLL
        for (u32 i = 0; i < Cast::kUnits; ++i) {
            U::template store<true>(args, row0 + i * kRowStep, col, U::quantize(x[i], scale.inverse));
        }
    } else {
        DGJ_NO_UNROLL
        for (u32 i = 0; i < Cast::kUnits; ++i) {
            x[0] = U::template load<false>(args, row0 + i * kRowStep, col);
            U::template store<false>(args, row0 + i * kRowStep, col, U::quantize(x[0], scale.inverse));
        }
    }
    if (local == 0 && row0 < args.rows) store_scale<Cast>(args, row_block, col_block, scale.sf);
}

template <class Cast>
DGJ_DEVICE void cast_per_block(const CastArgs& args) {
    ptx::wait_for_prior_kernels();
    u32 tile = ptx::block_index();
    DGJ_NO_UNROLL
    while (true) {
        if (args.vector) cast_blocks<Cast, true>(args, tile);
        else cast_blocks<Cast, false>(args, tile);
        tile += ptx::grid_size();
        if (tile >= args.tiles) break;
        ptx::sync_block();  // between turns: all threads have read the words that the next one overwrites
    }
}

}  // namespace dgj
