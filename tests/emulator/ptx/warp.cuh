// Exchange between the lanes of a warp.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE u32 shuffle(u32 v, u32 lane, Where w = {}) {
    return emu::shuffle(emu::Shuffle::kIndex, v, lane, 31, emu::kWholeWarp, w).value;
}
DGJ_DEVICE u32 shuffle_up(u32 v, u32 distance, Where w = {}) {
    return emu::shuffle(emu::Shuffle::kUp, v, distance, 0, emu::kWholeWarp, w).value;
}
DGJ_DEVICE u32 ballot(bool v, Where w = {}) { return emu::vote(emu::Vote::kBallot, v, emu::kWholeWarp, w); }
DGJ_DEVICE u32 sum_of_lanes(u32 v, Where w = {}) {
    u32 sum = 0;
    for (u32 lane = 0; lane < 32; lane++) sum += shuffle(v, lane, w);
    return sum;
}
DGJ_DEVICE u32 count_ones(u32 v) { return (u32)__builtin_popcount(v); }
DGJ_DEVICE u32 count_leading_zeros(u32 v) { return v == 0 ? 32 : (u32)__builtin_clz(v); }

DGJ_DEVICE bool elect_one(Where w = {}) { return emu::elect(emu::kWholeWarp, w) == lane_index(); }

}  // namespace dgj::ptx
