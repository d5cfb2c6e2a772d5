// Memory barriers in shared memory (PTX ISA, mbarrier): phases, arrivals, and bytes still to come.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the asynchronous proxy and to the other blocks of the cluster.
DGJ_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Waits until the phase with this parity has completed.
DGJ_DEVICE void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
// Whether that phase is over, without any waiting.
DGJ_DEVICE bool barrier_test(u32 barrier, u32 parity) {
    u32 over;
    asm volatile(
        "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.b32 %0, 1, 0, done;\n}"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
    return over != 0;
}
DGJ_DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Where the condition holds, without a branch.
DGJ_DEVICE void barrier_arrive_if(bool condition, u32 barrier) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(
            barrier),
        "r"((u32)condition)
        : "memory");
}
// On the barrier at the same offset in block `rank` of the cluster. Orders at block scope only: right for
// giving back a stage that was read, wrong for handing over data (the .release.cluster form costs a fence of
// 700-1000 cycles).
DGJ_DEVICE void barrier_arrive_remote(u32 barrier, u32 rank) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}
DGJ_DEVICE void barrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// More bytes to come in this phase, without arriving.
DGJ_DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// This thread's earlier copy_async4 arrive on the barrier when they are done; counts as one of its arrivals.
DGJ_DEVICE void barrier_arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace dgj::ptx
