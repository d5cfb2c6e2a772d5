// Accesses to shared memory, checked against its history.
#pragma once

#include "runtime/machine.hpp"

namespace dgj::emu {

[[noreturn]] void report(const char* what, const Block& block, const Shadow::Conflict& conflict);
void check_shared_read(const char* what, Block& block, u32 address, u32 bytes, const Clocks& clocks,
                       bool async_proxy, bool may_be_unwritten);
void check_shared_write(const char* what, Block& block, u32 address, u32 bytes, const Clocks& clocks,
                        bool async_proxy);
void check_usable_by_copies(Block& block, u32 address, const char* what, Where w);  // an mbarrier

}  // namespace dgj::emu
