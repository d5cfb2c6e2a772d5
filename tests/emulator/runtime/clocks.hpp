// Vector clocks: what a thread or barrier knows about the progress of the others. One component for each
// thread, warp (reads by its WGMMA) and mbarrier (phases) of the cluster, and one for the kernels before.
//
//   order    their earlier accesses are over: enough to overwrite what they read
//   visible  their writes can be read (PTX ISA, "Causality order")
//   fenced   their writes can be read by the asynchronous proxy too (PTX ISA, "Proxy-preserved base
//            causality order": a proxy fence stands somewhere between the write and here)
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/api.hpp"

namespace dgj::emu {

class Clocks {
public:
    void reset(u32 components) {
        count_ = components;
        words_.assign(3 * components, 0);
    }
    u32& order(u32 c) { return words_[c]; }
    u32& visible(u32 c) { return words_[count_ + c]; }
    u32& fenced(u32 c) { return words_[2 * count_ + c]; }
    u32 order(u32 c) const { return words_[c]; }
    u32 visible(u32 c) const { return words_[count_ + c]; }
    u32 fenced(u32 c) const { return words_[2 * count_ + c]; }

    bool empty() const { return words_.empty(); }
    void join(const Clocks& other) { join(other, 3 * count_); }
    void join_order(const Clocks& other) { join(other, count_); }
    void copy(const Clocks& other) { std::copy(other.words_.begin(), other.words_.end(), words_.begin()); }
    void fence() { std::copy_n(words_.begin() + count_, count_, words_.begin() + 2 * count_); }
    void advance(u32 c, u32 value) { order(c) = visible(c) = value; }

private:
    void join(const Clocks& other, u32 words) {
        u32* to = words_.data();
        const u32* from = other.words_.data();
        for (u32 i = 0; i < words; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
    }
    u32 count_ = 0;
    std::vector<u32> words_;  // order, visible, fenced
};

}  // namespace dgj::emu
