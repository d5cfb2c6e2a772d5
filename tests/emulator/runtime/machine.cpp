#include "runtime/machine.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

namespace dgj::emu {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr u64 kStackMark = 0x5441434b4d41524b;  // lowest word of a stack: overwritten means that it
                                                // overflowed

constexpr u32 kMaxSpins = 100000;

Machine* g_machine = nullptr;

u64 mix(u64 x) {  // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

}  // namespace

Machine& machine() { return *g_machine; }

std::string text(const char* format, ...) {
    char buffer[1024];
    va_list list;
    va_start(list, format);
    std::vsnprintf(buffer, sizeof buffer, format, list);
    va_end(list);
    return buffer;
}

std::string at(Where w) {
    const char* name = std::strrchr(w.file, '/');
    return text("%s:%d", name ? name + 1 : w.file, w.line);
}

void fibre_main(void* argument) {
    Machine& m = machine();
    auto* t = static_cast<Thread*>(argument);
    m.launch.entry(m.launch.parameters);
    t->state = Thread::State::kDone;
    m.leave();
}

// Seed 0: every asynchronous operation at once, threads in order. Seed 1: each as late as it can be. Others:
// chances, yields and priorities drawn from the seed.
Machine::Machine(const LaunchArguments& l, std::vector<Buffer>& b)
    : launch(l), buffers(b), random_state_(l.seed) {
    g_machine = this;
    timing_ = l.seed == 0 ? Timing::kEarly : l.seed == 1 ? Timing::kLate : Timing::kRandom;
    if (timing_ == Timing::kRandom) {
        static constexpr u32 kAdvance[] = {0, 4, 32, 128, 512}, kYield[] = {0, 8, 64, 256};
        advance_chance_ = kAdvance[random(5)];
        yield_chance_ = kYield[random(4)];
        by_priority_ = random(2) == 0;
    }
    const u32 threads = l.cluster * l.threads;
    stacks_bytes_ = threads * kStackBytes;
    stacks_ = mmap(nullptr, stacks_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks_ == MAP_FAILED) throw Fault{"no memory for the stacks of the threads"};
}

Machine::~Machine() {
    if (stacks_ != MAP_FAILED) munmap(stacks_, stacks_bytes_);
    g_machine = nullptr;
}

u64 Machine::random(u64 below) {
    random_state_ += 0x9e3779b97f4a7c15;
    return mix(random_state_) % below;
}

void Machine::build_cluster(u32 cluster) {
    const u32 warps = launch.threads / kWarp, per_block = launch.threads + 2 * warps + kBarriersOfBlock;
    components = launch.cluster * per_block + 1;
    blocks.clear();
    ready_warps_.clear();
    pending_.clear();
    cluster_waiting.clear();
    live = launch.cluster * launch.threads;
    // 65536 registers an SM, given in steps of 8 a thread, at most 255 (PTX ISA, setmaxnreg; one block an
    // SM).
    const u32 registers = std::min(65536 / launch.threads / 8 * 8, 256u);
    for (u32 rank = 0; rank < launch.cluster; rank++) {
        auto& block = *blocks.emplace_back(std::make_unique<Block>());
        block.rank = rank;
        block.index = cluster * launch.cluster + rank;
        block.live = launch.threads;
        block.memory.resize((launch.shared_bytes + 15) / 16 * 16);
        for (std::size_t i = 0; i < block.memory.size(); i += 4)
            std::memcpy(&block.memory[i], &launch.left[i / 4 % launch.left.size()], 4);
        block.shadow.reset(kSharedBase, launch.shared_bytes, launch.threads, warps, rank * per_block);
        block.warps.resize(warps);
        block.threads.resize(launch.threads);
        for (u32 w = 0; w < warps; w++) {
            Warp& warp = block.warps[w];
            warp.index = w;
            warp.component = rank * per_block + launch.threads + w;
            warp.met_component = (rank + 1) * per_block - warps + w;
            warp.registers = registers;
            warp.priority = static_cast<u32>(random(1000));
            ready_warps_.push_back(&warp);
        }
        for (u32 i = 0; i < launch.threads; i++) {
            Thread& t = block.threads[i];
            t.block = &block;
            t.warp = &block.warps[i / kWarp];
            t.warp->lanes.push_back(&t);
            t.warp->ready.push_back(i % kWarp);
            t.place = {i, block.index, launch.blocks, rank};
            t.id = rank * per_block + i;
            t.clocks.reset(components);
            t.clocks.advance(t.id, 1);
            u8* stack = static_cast<u8*>(stacks_) + (std::size_t{rank} * launch.threads + i) * kStackBytes;
            std::memcpy(stack, &kStackMark, sizeof kStackMark);
            make_fibre(t.fibre, stack, kStackBytes, &fibre_main, &t);
        }
    }
}

Thread* Machine::pick() {
    // Warps that have ready lanes are kept in front of the others only as long as nobody looks: scan, they
    // are few.
    Warp* chosen = nullptr;
    if (timing_ != Timing::kRandom || by_priority_) {
        for (Warp* w : ready_warps_)
            if (!w->ready.empty() &&
                (chosen == nullptr || w->priority < chosen->priority || timing_ != Timing::kRandom)) {
                chosen = w;
                if (timing_ != Timing::kRandom) break;
            }
        if (chosen && by_priority_ && random(256) == 0) chosen->priority = static_cast<u32>(random(1000));
    } else {
        const std::size_t count = ready_warps_.size(), first = random(count);
        for (std::size_t i = 0; i < count && chosen == nullptr; i++)
            if (Warp* w = ready_warps_[(first + i) % count]; !w->ready.empty()) chosen = w;
    }
    if (chosen == nullptr) return nullptr;
    const std::size_t i = timing_ == Timing::kRandom ? random(chosen->ready.size())
                                                     : chosen->ready.size() - 1;
    Thread* t = chosen->lanes[chosen->ready[i]];
    chosen->ready[i] = chosen->ready.back();
    chosen->ready.pop_back();
    return t;
}

void Machine::advance_one() {
    const std::size_t i = random(pending_.size());
    const std::shared_ptr<Operation> operation = pending_[i];
    if (!operation->done()) operation->steps[operation->next++]();
    if (operation->done()) {
        pending_[i] = pending_.back();
        pending_.pop_back();
    }
}

void Machine::finish(Operation& operation) {
    while (!operation.done()) operation.steps[operation.next++]();
}

void Machine::start(std::shared_ptr<Operation> operation) {
    operations++;
    if (timing_ == Timing::kEarly) return finish(*operation);
    pending_.push_back(std::move(operation));
}

bool Machine::is_early() {
    if (timing_ == Timing::kRandom) return random(2) == 0;
    return timing_ == Timing::kEarly;
}

void Machine::run_cluster(u32 cluster) {
    build_cluster(cluster);
    while (live > 0) {
        if (!pending_.empty() && advance_chance_ != 0 && random(1024) < advance_chance_) advance_one();
        Thread* t = pick();
        if (t == nullptr) {
            if (pending_.empty()) deadlock();
            advance_one();
            continue;
        }
        current_ = t;
        switches++;
        switch_fibre(scheduler_, t->fibre);
        current_ = nullptr;
        if (faulted_) throw Fault{fault_};
        if (t->state == Thread::State::kDone) after_exit(*t);
    }
    while (!pending_.empty()) advance_one();
}

void Machine::after_exit(Thread& t) {
    const u32 i = static_cast<u32>(t.place.thread);
    const u8* stack = static_cast<u8*>(stacks_) +
                      (std::size_t{t.place.rank} * launch.threads + i) * kStackBytes;
    if (std::memcmp(stack, &kStackMark, sizeof kStackMark) != 0)
        throw Fault{"emulator: the stack of " + name(t) + " overflowed"};
    live--;
    t.block->live--;
    // Shared memory must exist until bulk stores have read it (PTX ISA, cp.async.bulk: completion of the
    // group).
    if (!t.uncommitted.empty()) throw Fault{name(t) + " exits with bulk stores that it never committed"};
    for (const auto& group : t.groups)
        for (const auto& operation : group)
            if (std::find(t.block->reading.begin(), t.block->reading.end(), operation.get()) !=
                t.block->reading.end())
                throw Fault{name(t) + " exits while " + operation->what + " (" + at(operation->where) +
                            ") may still read its shared memory: no wait_group.read"};
    if (t.block->live == 0) check_warpgroups(*t.block);
    t.warp->exited |= 1u << t.place.thread % kWarp;
    for (const Gathering& g : t.warp->gatherings) {
        if (g.aligned || ((g.arrived | t.warp->exited) & g.members) != g.members) continue;
        Thread& leader = *t.warp->lanes[static_cast<u32>(__builtin_ctz(g.arrived))];
        leader.leads = true;
        wake(leader);
    }
    check_cluster_barrier();
}

// PTX ISA, wgmma.mma_async and setmaxnreg: all warps of a warpgroup execute the same ones. What each executed
// was compared; here, that none executed fewer.
void Machine::check_warpgroups(const Block& block) {
    for (const Warp& warp : block.warps) {
        const Warp& first = block.warps[warp.index / 4 * 4];
        const bool products = warp.products.size() != first.products.size();
        if (products || warp.budgets.size() != first.budgets.size())
            throw Fault{
                text("block %u: warps %u and %u of one warpgroup have not executed the same number of %s",
                     block.index, first.index, warp.index, products ? "wgmma" : "setmaxnreg")};
    }
}

void Machine::run() {
    std::vector<u32> order(launch.blocks / launch.cluster);
    for (u32 i = 0; i < order.size(); i++) order[i] = i;
    for (std::size_t i = order.size(); launch.seed > 1 && i > 1; i--)
        std::swap(order[i - 1], order[random(i)]);
    for (u32 cluster : order) run_cluster(cluster);
    // PTX ISA, griddepcontrol: .wait is for the prerequisite grids alone, not for those that they wait for.
    if (!waited)
        throw Fault{
            "no thread has executed griddepcontrol.wait: the next kernel may start before those before "
            "this one are done"};
}

void Machine::leave() { switch_fibre(current_->fibre, scheduler_); }

void Machine::step(Where w) {
    Thread& t = *current_;
    t.where = w;
    t.spins = 0;
    if (yield_chance_ != 0 && random(1024) < yield_chance_) {
        t.warp->ready.push_back(t.place.thread % kWarp);
        leave();
    }
}

// The warp goes behind the others, the lane behind its warp's, and something in flight may end.
void Machine::step_aside() {
    Thread& t = *current_;
    if (++t.spins > kMaxSpins)
        fault(text("%u strong reads in a row: nobody changes what the thread waits for", kMaxSpins));
    t.warp->ready.insert(t.warp->ready.begin(), t.place.thread % kWarp);
    const auto warp = std::find(ready_warps_.begin(), ready_warps_.end(), t.warp);
    std::rotate(warp, warp + 1, ready_warps_.end());
    t.warp->priority = 1000 + static_cast<u32>(random(1000));
    leave();
    if (!pending_.empty() && random(4) == 0) advance_one();
}

void Machine::block_on(std::function<std::string()> explain) {
    Thread& t = *current_;
    t.state = Thread::State::kBlocked;
    t.explain = std::move(explain);
    leave();
}

void Machine::wake(Thread& t) {
    t.state = Thread::State::kReady;
    t.warp->ready.push_back(t.place.thread % kWarp);
}

void Machine::wake_all(std::vector<Thread*>& waiting) {
    for (Thread* t : waiting) wake(*t);
    waiting.clear();
}

Gathering* Machine::gathering_of(const Thread& t) {
    const u32 bit = 1u << t.place.thread % kWarp;
    for (Gathering& g : t.warp->gatherings)
        if (g.arrived & bit) return &g;
    return nullptr;
}

// PTX ISA, .sync: the thread waits until all non-exited threads of the member mask execute the same
// instruction. .aligned: all threads in the warp must execute the same one, which lanes that have taken
// different branches do not, whatever they execute there.
bool Machine::gather(const char* what, Where w, u32 members, bool aligned) {
    Thread& t = *current_;
    Warp& warp = *t.warp;
    const u32 bit = 1u << t.place.thread % kWarp;
    t.where = w;
    if ((members & bit) == 0) fault(text("%s: the lane is not in its member mask %#x", what, members));
    Gathering* found = nullptr;
    for (Gathering& g : warp.gatherings)
        if (g.members & members) found = &g;
    if (found == nullptr) found = &warp.gatherings.emplace_back(Gathering{what, members, 0, aligned, w});
    if (std::strcmp(found->what, what) != 0)
        fault(text("%s: lanes of one warp execute %s while others wait in %s", name(t).c_str(), what,
                   found->what));
    if (found->members != members)
        fault(text("%s: lanes name the member masks %#x and %#x", what, members, found->members));
    if (aligned && (found->where.line != w.line || std::strcmp(found->where.file, w.file) != 0))
        fault(text("%s is .aligned, but lanes of the warp have diverged: others execute it at %s", what,
                   at(found->where).c_str()));
    found->arrived |= bit;
    const u32 there = aligned ? found->arrived : found->arrived | warp.exited;
    if ((there & members) == members) {
        meet(warp, *found);
        return true;
    }
    block_on([what, &t, this] {
        const Gathering* g = gathering_of(t);
        return text("%s, %d of %d lanes are there", what, __builtin_popcount(g->arrived),
                    __builtin_popcount(g->members));
    });
    return std::exchange(t.leads, false);
}

// A loop that some lanes went through and others did not leaves them apart until a .sync instruction brings
// them together: the end of the branch promises nothing. Barriers of the block are enforced for each thread.
void Machine::meet(Warp& warp, const Gathering& g) {
    const u32 first = warp.lanes[static_cast<u32>(__builtin_ctz(g.arrived))]->waits;
    for (const Thread* lane : warp.lanes)
        if (g.aligned && std::strcmp(g.what, "bar.sync") != 0 && lane->waits != first)
            fault(
                text("%s is .aligned, but lane %u waited for other mbarriers than lane 0, and no .sync "
                     "instruction brought the lanes together again",
                     g.what, lane->place.thread % kWarp));
    const bool all = (g.arrived | warp.exited) == kAllLanes;
    warp.met += all;
    for (Thread* lane : warp.lanes) {
        if ((g.arrived >> lane->place.thread % kWarp & 1) == 0) continue;
        lane->waits = 0;
        if (all) lane->clocks.order(warp.met_component) = warp.met;
    }
}

u32 Machine::gathered() const { return const_cast<Machine*>(this)->gathering_of(*current_)->arrived; }

void Machine::release_lanes() {
    Warp& warp = *current_->warp;
    Gathering* g = gathering_of(*current_);
    const u32 arrived = g->arrived;
    warp.gatherings.erase(warp.gatherings.begin() + (g - warp.gatherings.data()));
    for (Thread* lane : warp.lanes)
        if (lane != current_ && arrived >> lane->place.thread % kWarp & 1) wake(*lane);
}

void Machine::fault(const std::string& message) {
    if (current_ == nullptr) throw Fault{message};
    faulted_ = true;
    fault_ = message + "\n  by " + name(*current_) + " at " + at(current_->where);
    leave();
    std::abort();  // a thread that broke a rule is never continued
}

std::string Machine::name(const Thread& t) const {
    return text("block %u warp %u lane %u", t.block->index, t.warp->index, t.place.thread % kWarp);
}

std::string Machine::component_name(u32 component) const {
    const u32 warps = launch.threads / kWarp, per_block = launch.threads + 2 * warps + kBarriersOfBlock;
    const Block& block = *blocks[component / per_block];
    u32 i = component % per_block;
    if (i < launch.threads) return name(block.threads[i]);
    if ((i -= launch.threads) < warps) return text("block %u warp %u (wgmma)", block.index, i);
    for (const auto& [address, barrier] : block.barriers)
        if (barrier.index == i - warps)
            return text("block %u mbarrier %u", block.index, address - kSharedBase);
    return "an unknown mbarrier";
}

namespace {

std::string ranges(const std::vector<u32>& sorted) {
    std::string out;
    for (std::size_t i = 0, j; i < sorted.size(); i = j) {
        for (j = i + 1; j < sorted.size() && sorted[j] == sorted[j - 1] + 1;) j++;
        out += text(j - i == 1 ? "%s%u" : "%s%u-%u", i ? "," : "", sorted[i], sorted[j - 1]);
    }
    return out;
}

}  // namespace

// Every group of threads that waits: lanes that wait for the same, then warps that do.
void Machine::deadlock() {
    std::string report = "deadlock: no thread can run and no copy is in flight\n";
    for (const auto& block : blocks) {
        std::map<std::string, std::vector<u32>> warps;
        for (const Warp& warp : block->warps) {
            std::map<std::string, std::vector<u32>> lanes;
            for (const Thread* t : warp.lanes)
                if (t->state == Thread::State::kBlocked)
                    lanes[at(t->where) + " waits for " + t->explain()].push_back(t->place.thread % kWarp);
            for (const auto& [what, which] : lanes)
                warps[text("lanes %s: ", ranges(which).c_str()) + what].push_back(warp.index);
        }
        for (const auto& [what, which] : warps)
            report += text("  block %u warps %s ", block->index, ranges(which).c_str()) + what + "\n";
    }
    throw Fault{report};
}

}  // namespace dgj::emu
