// What is known about each word of a block's shared memory: who wrote it last, through which proxy, and who
// has read it since. An access that is not ordered with these is a fault, whether or not the values happened
// to come out right.
#pragma once

#include <vector>

#include "runtime/clocks.hpp"

namespace dgj::emu {

class Shadow {
public:
    enum class Kind : u8 {
        kUnwritten,
        kGeneric,   // by a thread (or cp.async, which belongs to the generic proxy too)
        kAtomic,    // by atomics alone, maybe of several threads: Block::atomics knows which
        kAsync,     // by the bulk copy engine
        kInFlight,  // a copy was issued; nobody has observed its end
        kBarrier    // an mbarrier object lives here
    };
    struct Conflict {
        const char* rule = nullptr;  // null: none
        u32 address = 0, component = 0, clock = 0;
        int line = 0;  // of the earlier access, 0: not recorded
        explicit operator bool() const { return rule != nullptr; }
    };
    static constexpr u32 kReading = 0xffffffff;  // an MMA that still reads

    void reset(u32 base, u32 bytes, u32 threads, u32 warps, u32 first_component);

    Conflict check_read(u32 address, u32 bytes, const Clocks& clocks, bool async_proxy,
                        bool may_be_unwritten) const;
    Conflict check_write(u32 address, u32 bytes, const Clocks& clocks, bool async_proxy) const;
    void note_read(u32 address, u32 bytes, u32 thread, u32 clock);
    void note_warp_read(u32 unit, u32 warp, u32 clock) {
        warp_reads_[unit * warps_ + warp] = clock;
        read_by_warps_[unit] = 1;
    }
    void note_bulk_read(u32 address, u32 bytes, u32 component, u32 clock);
    void note_write(u32 address, u32 bytes, Kind kind, u32 component, u32 clock, int line);
    void copy_unwritten(u32 address, u32 bytes, const Shadow& from, u32 from_address);
    Kind kind(u32 address) const { return writes_[(address - base_) / 4].kind; }
    u32 unit(u32 address) const { return (address - base_) / 16; }
    u32 address_of_unit(u32 unit) const { return base_ + unit * 16; }

private:
    struct Write {
        u32 component = 0, clock = 0;
        u16 line = 0;
        Kind kind = Kind::kUnwritten;
    };
    struct Read {
        u32 component = 0, clock = 0;  // clock 0: none
    };
    static constexpr u32 kMany = 0xffffffff;  // Read::component: see many_[clock]

    u32 base_ = 0, threads_ = 0, warps_ = 0, first_component_ = 0;
    std::vector<Write> writes_;           // a word each
    std::vector<Read> reads_;             // a word each
    std::vector<u32> warp_reads_;         // for each 16-byte unit, a clock for each warp
    std::vector<u8> read_by_warps_;       // a unit each
    std::vector<Read> bulk_reads_;        // a unit each
    std::vector<std::vector<u32>> many_;  // reads of a word by several threads: a clock for each thread
    std::vector<u32> free_;               // unused elements of many_
};

}  // namespace dgj::emu
