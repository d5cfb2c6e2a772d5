// A ring of stages in shared memory, filled by producers and emptied by consumers. Each stage has two
// barriers: `full` (its bytes and scales have arrived) and `empty` (its readers are done).
#pragma once

#include "ptx/base.cuh"
#include "ptx/sync.cuh"

namespace dgj {

template <u32 kStages>
struct Ring {
    u32 stage = 0;
    u32 phase = 0;  // parity of the round: consumers wait for full with it, producers for empty with its
                    // opposite

    DGJ_DEVICE void advance() {
        if (++stage == kStages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// For the warps of tiles and of scales, whole: the first call of each meets the other's, and whoever else
// comes to the barrier. The copy engine works off what it is given in order, and the scales of the first
// tile, without which no product of it counts, would come after a whole ring of tiles.
DGJ_DEVICE void meet_once(u32 named_barrier, u32 threads, bool& starting) {
    if (starting) ptx::sync_threads(named_barrier, threads);
    starting = false;
}

}  // namespace dgj
