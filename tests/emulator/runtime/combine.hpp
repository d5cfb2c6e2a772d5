// Arithmetic of reductions and atomics on one element.
#pragma once

#include "runtime/api.hpp"

namespace dgj::emu {

const char* name_of(Combine c);
// Whether the ISA has this operation for this type (PTX ISA, red; cp.reduce.async.bulk).
bool can_combine(Combine c, ElementType t);
// Bits of the element afterwards. kReplace and kExchange give `value`; kCompareAndSwap is the caller's.
u64 combine(Combine c, ElementType t, u64 old, u64 value);

}  // namespace dgj::emu
