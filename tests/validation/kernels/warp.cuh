// Two words of `in` a thread through shuffles and votes; 28 words a thread go out. The lanes at and above
// at[0] of each warp take part in collectives of their own. at[1]: the segment mask (operand c) that keeps
// shuffles among the lanes that take part; 1: none does, and there are no shuffles.
#pragma once

#include "kernels/common.cuh"
#include "ptx/probe.cuh"

namespace dgj {

DGJ_DEVICE void shuffles(u32* out, u32 v, u32 b, u32 segment, u32 members) {
    const u32 all = segment | 31;
    const probe::Shuffled r[10] = {
        probe::shuffle_up(v, 1, segment, members),    probe::shuffle_down(v, 3, all, members),
        probe::shuffle_bfly(v, 5, all, members),      probe::shuffle_idx(v, 0, all, members),
        probe::shuffle_up(v, 2, 0x1800, members),     probe::shuffle_down(v, 1, 0x181f, members),
        probe::shuffle_bfly(v, 7, 0x181f, members),   probe::shuffle_idx(v, b, 0x181f, members),
        probe::shuffle_up(v, b % 8, 0x1800, members), probe::shuffle_down(v, b % 8, 0x1807, members),
    };
    for (u32 i = 0; i < 10; i += 2)
        ptx::store_global_word4(out + 2 * i, {r[i].value, r[i].in_range, r[i + 1].value, r[i + 1].in_range});
}

DGJ_DEVICE void collectives(u32* out, u32 v, u32 b, u32 segment, u32 members) {
    if (segment != 1) shuffles(out, v, b, segment, members);
    const u32 leader = probe::elect(members), all_agree = probe::ballot(leader == ptx::lane_index(), members);
    const u32 few = v % 4;
    ptx::store_global_word4(out + 20, {probe::ballot(v & 1, members), probe::match_any(few, members),
                                       probe::match_all(v & ~0xffu, members),
                                       (all_agree & (all_agree - 1)) == 0 && (all_agree & members) != 0});
    ptx::store_global_word4(out + 24, {probe::vote_all(v & 1, members), probe::vote_any(v & 1, members),
                                       probe::vote_uni(v & 1, members), probe::vote_uni(v >> 31, members)});
}

}  // namespace dgj

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    ptx::wait_for_prior_kernels();
    const u32 thread = ptx::thread_index(), split = (u32)args.at[0];
    const u32* in = (const u32*)args.in + 2 * thread;
    const u32 v = ptx::load_global_u32(in), b = ptx::load_global_u32(in + 1);
    u32* out = (u32*)args.out + thread * 28;
    const u32 low = split >= 32 ? ~0u : (1u << split) - 1;
    if (ptx::lane_index() < split) collectives(out, v, b, (u32)args.at[1], low);
    else collectives(out, v, b, (u32)args.at[1], ~low);
}
