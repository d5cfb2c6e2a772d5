// A ring of stages in shared memory, filled by producers and emptied by consumers. Each stage has two
// barriers: `full` (its bytes and scales have arrived) and `empty` (its readers are done).
#pragma once

#include "ptx/base.cuh"

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

}  // namespace dgj
