// Exchange between the lanes of a warp. All 32 lanes must call.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE u32 shuffle(u32 v, u32 lane) { return __shfl_sync(0xffffffffu, v, lane); }
// The value of the lane `distance` below; lanes under `distance` keep their own.
DGJ_DEVICE u32 shuffle_up(u32 v, u32 distance) { return __shfl_up_sync(0xffffffffu, v, distance); }
DGJ_DEVICE u32 ballot(bool v) { return __ballot_sync(0xffffffffu, v); }
DGJ_DEVICE u32 sum_of_lanes(u32 v) { return __reduce_add_sync(0xffffffffu, v); }
DGJ_DEVICE u32 count_ones(u32 v) { return __popc(v); }
DGJ_DEVICE u32 count_leading_zeros(u32 v) { return __clz(v); }

// True in one lane of a whole warp. The compiler knows that it is one: a tensor copy behind it is one
// instruction, where behind a comparison of lane indices it is a loop over the lanes.
DGJ_DEVICE bool elect_one() {
    u32 elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected != 0;
}

}  // namespace dgj::ptx
