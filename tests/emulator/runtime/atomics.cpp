// Strong memory operations: atomics, fences; and plain accesses to another block's shared memory.
#include <algorithm>
#include <cstring>

#include "runtime/checks.hpp"
#include "runtime/combine.hpp"

namespace dgj::emu {
namespace {

// PTX ISA, "Release and Acquire Patterns": a release hands over what the thread knows, as does a fence before
// a relaxed write; an acquire takes it, as does a fence after a relaxed read.
void synchronise(AtomicPlace& place, Order order, bool reads, bool writes) {
    Thread& t = machine().thread();
    if (reads) {
        if (order == Order::kAcquire || order == Order::kAcquireRelease) t.clocks.join(place.released);
        if (!t.readable) (t.readable = std::make_unique<Clocks>())->reset(machine().components);
        t.readable->join(place.released);
    }
    if (!writes) return;
    if (order == Order::kRelease || order == Order::kAcquireRelease) {
        place.released.join(t.clocks);
        release(t);
    } else if (t.fenced) {
        place.released.join(*t.fenced);
    }
}

// PTX ISA, "Morally strong operations": each thread must be within the other's scope.
void check_scope(AtomicPlace& place, const char* what, Scope scope) {
    const Block& block = *machine().thread().block;
    const u32 cluster = block.index / machine().launch.cluster;
    if (place.released.empty()) {
        place.released.reset(machine().components);
        place.block = block.index, place.cluster = cluster, place.scope = scope;
        return;
    }
    const Scope narrower = std::min(place.scope, scope);
    const Scope needed = place.block == block.index ? Scope::kCta
                         : place.cluster == cluster ? Scope::kCluster
                                                    : Scope::kGpu;
    if (narrower < needed)
        machine().fault(
            text("%s: block %u works on the same memory, and the scope of one of both ends before", what,
                 place.block));
    if (place.cluster != cluster) place.released.reset(machine().components);  // that cluster has ended
    place.block = block.index, place.cluster = cluster, place.scope = narrower;
}

u64 apply(const Atomic& a, u8* at, u64 value, u64 compare) {
    const u32 bytes = bytes_of(a.type);
    u64 old = 0;
    std::memcpy(&old, at, bytes);
    if (a.how != Combine::kCompareAndSwap) value = combine(a.how, a.type, old, value);
    else if (old != compare) value = old;
    std::memcpy(at, &value, bytes);
    return old;
}

std::string name_of(const Atomic& a, const char* space) { return text("atom.%s.%s", space, name_of(a.how)); }

// As step, for what a loop may repeat until another thread changes the value.
void step_of_loop(Where w) {
    Thread& t = machine().thread();
    const u32 spins = t.spins;
    machine().step(w);
    t.spins = spins;
    machine().step_aside();
}

void check_type(const Atomic& a, const char* what) {
    if (!can_combine(a.how, a.type)) machine().fault(text("%s: not for this type", what));
}

}  // namespace

u64 atomic_shared(const Atomic& a, u32 address, u32 rank, u64 value, u64 compare, Where w) {
    Machine& m = machine();
    step_of_loop(w);
    const std::string name = name_of(a, "shared");
    const char* what = name.c_str();
    check_type(a, what);
    Thread& t = m.thread();
    Block& block = peer(rank, what, w);
    const u32 bytes = bytes_of(a.type);
    u8* at = shared_at(block, address, bytes, bytes, what, w);
    const bool among_atomics = block.shadow.kind(address) == Shadow::Kind::kAtomic;
    if (!among_atomics) {  // the first one: ordered with what plain accesses did before
        check_shared_read(what, block, address, bytes, t.clocks, false, false);
        check_shared_write(what, block, address, bytes, t.clocks, false);
        block.atomics.erase(address);
    }
    AtomicPlace& place = block.atomics[address];
    check_scope(place, what, a.scope);
    const u64 old = apply(a, at, value, compare);
    block.shadow.note_write(address, bytes, Shadow::Kind::kAtomic, t.id, t.clocks.order(t.id), w.line);
    place.writers[t.id] = t.clocks.order(t.id);
    synchronise(place, a.order, true, true);
    return old;
}

u64 atomic_global(const Atomic& a, void* address, u64 value, u64 compare, Where w) {
    Machine& m = machine();
    step_of_loop(w);
    const std::string name = name_of(a, "global");
    const char* what = name.c_str();
    check_type(a, what);
    check_prior_kernels(what);
    const u32 bytes = bytes_of(a.type);
    const u64 to = reinterpret_cast<u64>(address);
    if (to % bytes != 0) m.fault(text("%s: address %#llx is not a multiple of %u", what, to, bytes));
    note_written(buffer_at(to, bytes, what, w), to, bytes, true, what, w);
    AtomicPlace& place = m.atomics[to];
    check_scope(place, what, a.scope);
    const u64 old = apply(a, static_cast<u8*>(address), value, compare);
    synchronise(place, a.order, true, true);
    return old;
}

u64 load_strong(ElementType type, const void* address, Order order, Scope scope, Where w) {
    Machine& m = machine();
    step_of_loop(w);
    u64 value = 0;
    const u32 spins = m.thread().spins;
    load_global(&value, address, bytes_of(type), w);
    m.thread().spins = spins;
    AtomicPlace& place = m.atomics[reinterpret_cast<u64>(address)];
    check_scope(place, "ld", scope);
    synchronise(place, order, true, false);
    return value;
}

// PTX ISA, membar / fence: fence.acq_rel.
void fence(Scope, Where w) {
    machine().step(w);
    Thread& t = machine().thread();
    if (t.readable) t.clocks.join(*t.readable);
    if (!t.fenced) (t.fenced = std::make_unique<Clocks>())->reset(machine().components);
    t.fenced->copy(t.clocks);
    release(t);
}

void load_remote(void* to, u32 address, u32 rank, u32 bytes, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Block& block = peer(rank, "ld.shared::cluster", w);
    const u8* from = shared_at(block, address, bytes, bytes, "ld.shared::cluster", w);
    check_shared_read("ld.shared::cluster", block, address, bytes, t.clocks, false, true);
    block.shadow.note_bulk_read(address, bytes, t.id, t.clocks.order(t.id));
    std::memcpy(to, from, bytes);
}

void store_remote(u32 address, u32 rank, const void* from, u32 bytes, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Block& block = peer(rank, "st.shared::cluster", w);
    u8* to = shared_at(block, address, bytes, bytes, "st.shared::cluster", w);
    check_shared_write("st.shared::cluster", block, address, bytes, t.clocks, false);
    block.shadow.note_write(address, bytes, Shadow::Kind::kGeneric, t.id, t.clocks.order(t.id), w.line);
    std::memcpy(to, from, bytes);
}

}  // namespace dgj::emu
