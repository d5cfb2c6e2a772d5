// at[0] rounds through a ring of two stages: thread 0 fetches 512 bytes a round, warps 1-3 hand them out and
// give the stage back. Shows the parities of full and empty barriers over several phases.
#pragma once

#include "kernels/common.cuh"

DGJ_KERNEL(dgj::kThreads)
dgj_kernel(const DGJ_GRID_CONSTANT dgj::TensorMap x, const DGJ_GRID_CONSTANT dgj::TensorMap y,
           const DGJ_GRID_CONSTANT dgj::ProbeArgs args) {
    using namespace dgj;
    const u32 base = ptx::shared_base(), thread = ptx::thread_index();
    if (thread == 0) {
        for (u32 s = 0; s < 2; s++) {
            ptx::barrier_init(base + 8 * s, 1);
            ptx::barrier_init(base + 16 + 8 * s, kThreads - 32);
        }
        ptx::fence_barrier_init();
    }
    ptx::wait_for_prior_kernels();
    ptx::sync_block();
    const u32 rounds = (u32)args.at[0];
    if (thread == 0) {
        for (u32 r = 0; r < rounds; r++) {
            const u32 stage = r % 2, parity = r / 2 % 2;
            ptx::barrier_wait(base + 16 + 8 * stage, parity ^ 1);
            ptx::barrier_arrive_expect(base + 8 * stage, 512);
            ptx::load_bytes(base + kData + stage * 512, (const u8*)args.in + r * 512, 512, base + 8 * stage);
        }
    } else if (thread >= 32) {
        for (u32 r = 0; r < rounds; r++) {
            const u32 stage = r % 2, parity = r / 2 % 2;
            ptx::barrier_wait(base + 8 * stage, parity);
            for (u32 i = thread - 32; i < 128; i += kThreads - 32) {
                const float v = ptx::load_shared(base + kData + stage * 512 + i * 4);
                ptx::store_global2((u8*)args.out + (r * 128 + i) * 8, v, ptx::from_bits(r * 2 + parity));
            }
            ptx::barrier_arrive(base + 16 + 8 * stage);
        }
    }
}
