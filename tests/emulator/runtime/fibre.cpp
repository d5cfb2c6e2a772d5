#include "runtime/fibre.hpp"

#include <cstdint>

#if !defined(__x86_64__)
#error "the emulator switches stacks by hand on x86-64 only; add the switch of this architecture here"
#endif

namespace dgj::emu {
namespace {

// System V ABI: these registers survive a call, and so does the control word of the FPU, which kernels never
// change.
asm(R"(
.text
.p2align 4
.local dgj_emu_switch
.type dgj_emu_switch, @function
dgj_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size dgj_emu_switch, .-dgj_emu_switch
.p2align 4
.local dgj_emu_start
.type dgj_emu_start, @function
dgj_emu_start:
    movq %r13, %rdi
    callq *%r12
    ud2
.size dgj_emu_start, .-dgj_emu_start
)");

extern "C" void dgj_emu_switch(Fibre*, Fibre*);
extern "C" void dgj_emu_start();

}  // namespace

void make_fibre(Fibre& fibre, void* stack, std::size_t bytes, void (*start)(void*), void* argument) {
    auto top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{63};
    // Seven words are popped by the first switch; the call then finds the stack aligned to 16 bytes.
    auto* words = reinterpret_cast<std::uintptr_t*>(top) - 9;
    words[0] = 0;                                           // r15
    words[1] = 0;                                           // r14
    words[2] = reinterpret_cast<std::uintptr_t>(argument);  // r13
    words[3] = reinterpret_cast<std::uintptr_t>(start);     // r12
    words[4] = 0;                                           // rbx
    words[5] = 0;                                           // rbp
    words[6] = reinterpret_cast<std::uintptr_t>(&dgj_emu_start);
    fibre.stack_pointer = words;
}

void switch_fibre(Fibre& from, Fibre& to) { dgj_emu_switch(&from, &to); }

}  // namespace dgj::emu
