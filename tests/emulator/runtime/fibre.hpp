// Fibres: one stack for each CUDA thread, switched by hand (ucontext would cost two system calls a switch).
#pragma once

#include <cstddef>

namespace dgj::emu {

struct Fibre {
    void* stack_pointer = nullptr;
};

// Prepares a fibre that calls start(argument) on the stack [stack, stack + bytes). start must never return.
void make_fibre(Fibre& fibre, void* stack, std::size_t bytes, void (*start)(void*), void* argument);

// Leaves `from` (filled in) and continues `to`.
void switch_fibre(Fibre& from, Fibre& to);

}  // namespace dgj::emu
