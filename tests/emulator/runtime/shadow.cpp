#include "runtime/shadow.hpp"

namespace dgj::emu {

void Shadow::reset(u32 base, u32 bytes, u32 threads, u32 warps, u32 first_component) {
    base_ = base, threads_ = threads, warps_ = warps, first_component_ = first_component;
    const u32 units = (bytes + 15) / 16;
    writes_.assign(units * 4, {});
    reads_.assign(units * 4, {});
    warp_reads_.assign(units * warps, 0);
    read_by_warps_.assign(units, 0);
    bulk_reads_.assign(units, {});
    many_.clear();
    free_.clear();
}

Shadow::Conflict Shadow::check_read(u32 address, u32 bytes, const Clocks& clocks, bool async_proxy,
                                    bool may_be_unwritten) const {
    const u32 first = (address - base_) / 4, end = (address - base_ + bytes + 3) / 4;
    for (u32 i = first; i < end; i++) {
        const Write& w = writes_[i];
        const char* rule = nullptr;
        switch (w.kind) {
            case Kind::kUnwritten:
                if (!may_be_unwritten) rule = "it was never written";
                break;
            case Kind::kInFlight:
                rule = "a copy into it is in flight, and no wait has observed its end";
                break;
            case Kind::kBarrier: rule = "an mbarrier lives there"; break;
            case Kind::kGeneric:
            case Kind::kAtomic:
                if (clocks.visible(w.component) < w.clock) rule = "the write is not ordered before this read";
                else if (async_proxy && clocks.fenced(w.component) < w.clock)
                    rule =
                        "no fence.proxy.async stands between the plain write and this read by the "
                        "asynchronous proxy";
                break;
            case Kind::kAsync:
                if (clocks.visible(w.component) < w.clock) rule = "the copy's end was not observed by a wait";
                break;
        }
        if (rule) return {rule, base_ + i * 4, w.component, w.clock, w.line};
    }
    return {};
}

Shadow::Conflict Shadow::check_write(u32 address, u32 bytes, const Clocks& clocks, bool async_proxy) const {
    const u32 first = (address - base_) / 4, end = (address - base_ + bytes + 3) / 4;
    for (u32 i = first; i < end; i++) {
        const Write& w = writes_[i];
        const char* rule = nullptr;
        switch (w.kind) {
            case Kind::kUnwritten: break;
            case Kind::kInFlight:
                rule = "a copy into it is in flight, and no wait has observed its end";
                break;
            case Kind::kBarrier: rule = "an mbarrier lives there"; break;
            case Kind::kGeneric:
            case Kind::kAtomic:
                if (clocks.order(w.component) < w.clock)
                    rule = "an earlier write is not ordered before this one";
                else if (async_proxy && clocks.fenced(w.component) < w.clock)
                    rule =
                        "no fence.proxy.async stands between a plain write and this one by the asynchronous "
                        "proxy";
                break;
            case Kind::kAsync:
                if (clocks.order(w.component) < w.clock)
                    rule = "an earlier copy into it is not ordered before this write";
                break;
        }
        if (rule) return {rule, base_ + i * 4, w.component, w.clock, w.line};

        const Read& r = reads_[i];
        if (r.clock != 0 && r.component != kMany && clocks.order(r.component) < r.clock)
            return {"a read of the old value is not ordered before this write", base_ + i * 4, r.component,
                    r.clock, 0};
        if (r.component == kMany) {
            const std::vector<u32>& many = many_[r.clock];
            for (u32 t = 0; t < threads_; t++)
                if (clocks.order(first_component_ + t) < many[t])
                    return {"a read of the old value is not ordered before this write", base_ + i * 4,
                            first_component_ + t, many[t], 0};
        }
    }
    for (u32 u = first / 4; u < (end + 3) / 4; u++) {
        const Read& r = bulk_reads_[u];
        if (r.clock != 0 && clocks.order(r.component) < r.clock)
            return {"a copy that reads the old value is not ordered before this write", base_ + u * 16,
                    r.component, r.clock, 0};
        if (!read_by_warps_[u]) continue;
        for (u32 w = 0; w < warps_; w++) {
            const u32 clock = warp_reads_[u * warps_ + w], component = first_component_ + threads_ + w;
            if (clocks.order(component) >= clock) continue;
            return {clock == kReading ? "a wgmma that was not waited for reads the old value"
                                      : "a wgmma that reads the old value is not ordered before this write",
                    base_ + u * 16, component, clock, 0};
        }
    }
    return {};
}

void Shadow::note_read(u32 address, u32 bytes, u32 thread, u32 clock) {
    const u32 first = (address - base_) / 4, end = (address - base_ + bytes + 3) / 4;
    const u32 component = first_component_ + thread;
    for (u32 i = first; i < end; i++) {
        Read& r = reads_[i];
        if (r.component == kMany) {
            many_[r.clock][thread] = clock;
        } else if (r.clock == 0 || r.component == component) {
            r = {component, clock};
        } else {
            u32 slot = static_cast<u32>(many_.size());
            if (!free_.empty()) slot = free_.back(), free_.pop_back();
            else many_.emplace_back();
            many_[slot].assign(threads_, 0);
            many_[slot][r.component - first_component_] = r.clock;
            many_[slot][thread] = clock;
            r = {kMany, slot};
        }
    }
}

void Shadow::note_bulk_read(u32 address, u32 bytes, u32 component, u32 clock) {
    for (u32 u = unit(address); u < (address - base_ + bytes + 15) / 16; u++)
        bulk_reads_[u] = {component, clock};
}

void Shadow::note_write(u32 address, u32 bytes, Kind kind, u32 component, u32 clock, int line) {
    const u32 first = (address - base_) / 4, end = (address - base_ + bytes + 3) / 4;
    for (u32 i = first; i < end; i++) {
        writes_[i] = {component, clock, static_cast<u16>(line), kind};
        if (reads_[i].component == kMany) free_.push_back(reads_[i].clock);
        reads_[i] = {};
    }
    // Reads of a unit's other words stay recorded: forgetting them would hide a later conflict.
    for (u32 u = (first + 3) / 4; u < end / 4; u++) {
        bulk_reads_[u] = {};
        if (!read_by_warps_[u]) continue;
        read_by_warps_[u] = 0;
        for (u32 w = 0; w < warps_; w++) warp_reads_[u * warps_ + w] = 0;
    }
}

void Shadow::copy_unwritten(u32 address, u32 bytes, const Shadow& from, u32 from_address) {
    for (u32 i = 0; i < bytes; i += 4)
        if (from.kind(from_address + i) == Kind::kUnwritten)
            writes_[(address + i - base_) / 4].kind = Kind::kUnwritten;
}

}  // namespace dgj::emu
