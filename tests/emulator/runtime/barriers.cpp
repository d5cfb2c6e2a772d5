// mbarriers, named barriers, warps, clusters, register budgets, dependent launch.
#include <map>

#include "runtime/checks.hpp"

namespace dgj::emu {

void release(Thread& t) { t.clocks.advance(t.id, t.clocks.order(t.id) + 1); }

namespace {

// All of them have released and acquire what all have released.
void exchange_clocks(const std::vector<Thread*>& threads) {
    Clocks& all = threads.front()->clocks;
    for (std::size_t i = 1; i < threads.size(); i++) all.join(threads[i]->clocks);
    for (std::size_t i = 1; i < threads.size(); i++) threads[i]->clocks.copy(all);
    for (Thread* t : threads) release(*t);
}

// A thread that waits for a parity misses its phase if the next one completes first. That a lane has seen it
// says nothing about the others of its warp: if the next phase builds on what that lane did, the others must
// have met it in between.
void check_nobody_is_late(Mbarrier& b) {
    const auto known = [&](const Mbarrier::Passed& p) {
        return b.clocks.order(p.thread->id) >= p.clock ||
               b.clocks.order(p.thread->warp->met_component) > p.met;
    };
    std::map<const Warp*, const Thread*> ahead;
    for (const auto& p : b.passed)
        if (known(p)) ahead.emplace(p.thread->warp, p.thread);
    for (const auto& p : b.passed) {
        const auto found = ahead.find(p.thread->warp);
        if (found == ahead.end() || known(p)) continue;
        machine().fault(
            text("phase %u of an mbarrier completes, which %s made possible, but nothing orders it after "
                 "the wait of %s for the phase before: it might wait for that for ever",
                 b.phase, machine().name(*found->second).c_str(), machine().name(*p.thread).c_str()));
    }
    b.passed.clear();
}

// PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier", phase completion: no pending
// arrivals and no pending bytes.
void check_phase(Mbarrier& b) {
    if (b.pending != 0 || b.bytes != 0) return;
    check_nobody_is_late(b);
    b.phase++;
    b.pending = b.count;
    b.clocks.advance(b.component, b.phase);
    b.completed.copy(b.clocks);
    b.far_completed.copy(b.far);
    machine().wake_all(b.waiting);
}

void take_arrival(Mbarrier& b, u32 address) {
    if (b.pending == 0)
        machine().fault(text("mbarrier %u: more arrivals than its count of %u in phase %u",
                             address - kSharedBase, b.count, b.phase));
    b.pending--;
}

std::string describe(const Mbarrier& b, u32 address) {
    return text("mbarrier %u: phase %u, %u of %u arrivals and %d bytes are missing", address - kSharedBase,
                b.phase, b.pending, b.count, b.bytes);
}

}  // namespace

Mbarrier& barrier_at(Block& block, u32 address, const char* what, Where w) {
    shared_at(block, address, 8, 8, what, w);
    const auto found = block.barriers.find(address);
    if (found == block.barriers.end())
        machine().fault(text("%s: no mbarrier was initialised at offset %u", what, address - kSharedBase));
    return found->second;
}

// A thread may use an mbarrier when its initialisation is ordered before; another block or the asynchronous
// proxy only after fence.mbarrier_init as well (PTX ISA, membar / fence: fence.mbarrier_init).
static Mbarrier& usable_barrier(Block& block, u32 address, bool needs_fence, const char* what, Where w) {
    Mbarrier& b = barrier_at(block, address, what, w);
    const Thread& t = machine().thread();
    if (t.clocks.visible(b.initialised_by->id) < b.initialised_clock)
        machine().fault(text("%s: the initialisation of mbarrier %u is not ordered before", what,
                             address - kSharedBase));
    if (needs_fence && !b.fenced)
        machine().fault(text("%s: mbarrier %u was initialised without fence.mbarrier_init", what,
                             address - kSharedBase));
    return b;
}

void check_usable_by_copies(Block& block, u32 address, const char* what, Where w) {
    usable_barrier(block, address, true, what, w);
}

void barrier_init(u32 address, u32 arrivals, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Block& block = *t.block;
    shared_at(block, address, 8, 8, "mbarrier.init", w);
    if (arrivals == 0 || arrivals >= 1u << 20) m.fault(text("mbarrier.init: a count of %u", arrivals));
    if (block.barriers.size() == kBarriersOfBlock) m.fault("emulator: more mbarriers than kBarriersOfBlock");
    if (block.barriers.contains(address)) m.fault("mbarrier.init: there is one already");
    check_shared_write("mbarrier.init", block, address, 8, t.clocks, false);
    block.shadow.note_write(address, 8, Shadow::Kind::kBarrier, t.id, t.clocks.order(t.id), w.line);
    Mbarrier& b = block.barriers[address];
    b.index = static_cast<u32>(block.barriers.size() - 1);
    b.component = block.warps.back().component + 1 + b.index;
    b.count = b.pending = arrivals;
    b.initialised_by = &t;
    b.initialised_clock = t.clocks.order(t.id);
    b.clocks.reset(m.components);
    b.completed.reset(m.components);
    b.far.reset(m.components);
    b.far_completed.reset(m.components);
}

void fence_barrier_init(Where w) {
    Machine& m = machine();
    m.step(w);
    for (auto& [address, b] : m.thread().block->barriers)
        if (b.initialised_by == &m.thread()) b.fenced = true;
}

// PTX ISA, mbarrier.test_wait / try_wait .parity: true when the phase with this parity is not the current
// one. Acquires.
void barrier_wait(u32 address, u32 parity, Where w, Scope scope) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Mbarrier& b = usable_barrier(*t.block, address, false, "mbarrier.try_wait", w);
    if (parity > 1) m.fault(text("mbarrier.try_wait: a parity of %u", parity));
    t.waits++;
    while ((b.phase & 1) == parity) {
        b.waiting.push_back(&t);
        m.block_on([&b, address] { return describe(b, address); });
        t.where = w;
    }
    b.passed.push_back({&t, t.clocks.order(t.id), t.warp->met});
    t.clocks.join(b.completed);
    if (scope != Scope::kCta) t.clocks.join(b.far_completed);
}

// As above, without waiting. A lane that saw the phase end here has waited for it like one that does so
// later.
bool barrier_test(u32 address, u32 parity, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Mbarrier& b = usable_barrier(*t.block, address, false, "mbarrier.test_wait", w);
    if (parity > 1) m.fault(text("mbarrier.test_wait: a parity of %u", parity));
    if ((b.phase & 1) == parity) return false;
    t.waits++;
    b.passed.push_back({&t, t.clocks.order(t.id), t.warp->met});
    t.clocks.join(b.completed);
    return true;
}

// PTX ISA, mbarrier.arrive: .release at .cta scope by default. An arrive in another block so orders what was
// read before what comes after, but hands over no data; at .cluster scope it does, to a wait of that scope.
void barrier_arrive(u32 address, u32 rank, Where w, Scope scope) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Block& block = peer(rank, "mbarrier.arrive", w);
    const bool remote = &block != t.block;
    Mbarrier& b = usable_barrier(block, address, remote, "mbarrier.arrive", w);
    take_arrival(b, address);
    if (scope != Scope::kCta) b.far.join(t.clocks);
    if (remote) b.clocks.join_order(t.clocks);
    else b.clocks.join(t.clocks);
    release(t);
    check_phase(b);
}

static void expect_bytes(Mbarrier& b, u32 bytes, const char* what) {
    b.bytes += static_cast<i32>(bytes);
    if (b.bytes >= 1 << 20) machine().fault(text("%s: more than 2^20 - 1 bytes", what));
}

void barrier_arrive_expect(u32 address, u32 bytes, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Mbarrier& b = usable_barrier(*t.block, address, false, "mbarrier.arrive.expect_tx", w);
    expect_bytes(b, bytes, "mbarrier.arrive.expect_tx");
    take_arrival(b, address);
    b.clocks.join(t.clocks);
    release(t);
    check_phase(b);
}

// PTX ISA, mbarrier.expect_tx: no arrival; .relaxed orders nothing.
void barrier_expect(u32 address, u32 bytes, Where w) {
    Machine& m = machine();
    m.step(w);
    Mbarrier& b = usable_barrier(*m.thread().block, address, false, "mbarrier.expect_tx", w);
    expect_bytes(b, bytes, "mbarrier.expect_tx");
    check_phase(b);
}

void complete_bytes(Block& block, u32 address, u32 bytes) {
    Mbarrier& b = block.barriers.at(address);
    b.bytes -= static_cast<i32>(bytes);
    check_phase(b);
}

// PTX ISA, cp.async.mbarrier.arrive.noinc: the arrive happens when all earlier cp.async of the thread are
// complete, and counts as one of those that the barrier was initialised for.
void barrier_arrive_after_copies(u32 address, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Block& block = *t.block;
    usable_barrier(block, address, false, "cp.async.mbarrier.arrive", w);
    auto operation = std::make_shared<Operation>();
    operation->what = "cp.async.mbarrier.arrive";
    operation->where = w;
    auto arrive = [&block, address, clocks = t.clocks, copies = std::move(t.copies)] {
        Mbarrier& b = block.barriers.at(address);
        for (const auto& copy : copies) {
            machine().finish(*copy);
            block.shadow.note_write(copy->source_address, copy->source_bytes, Shadow::Kind::kGeneric,
                                    b.component, b.phase + 1, copy->where.line);
        }
        take_arrival(b, address);
        b.clocks.join_order(
            clocks);  // triggered by the copies, the arrive orders nothing else of the thread's writes
        check_phase(b);
    };
    operation->steps = {std::move(arrive)};
    t.copies.clear();
    release(t);
    m.start(std::move(operation));
}

// ---- barriers of threads ------------------------------------------------------------------------------

// PTX ISA, bar: all threads of a warp execute the same one, and the barrier counts warps.
void sync_threads(u32 id, u32 threads, Where w) {
    Machine& m = machine();
    m.step(w);
    if (id >= kNamedBarriers) m.fault(text("bar.sync: barrier %u; there are 16", id));
    if (threads == 0 || threads % kWarp != 0)
        m.fault(text("bar.sync: %u threads, not a multiple of 32", threads));
    if (!m.gather("bar.sync", w)) return;
    Thread& t = m.thread();
    NamedBarrier& b = t.block->named[id];
    if (b.waiting.empty()) b.threads = threads;
    if (b.threads != threads)
        m.fault(text("bar.sync %u: %u threads here, %u where others wait", id, threads, b.threads));
    b.waiting.push_back(t.warp);
    if (b.waiting.size() * kWarp < threads) {  // the warp's other lanes go on waiting for this one
        b.leaders.push_back(&t);
        m.block_on([&b, id] {
            return text("bar.sync %u: %zu of %u threads are there", id, b.waiting.size() * kWarp, b.threads);
        });
        return m.release_lanes();
    }
    std::vector<Thread*> all;
    for (const Warp* warp : b.waiting) all.insert(all.end(), warp->lanes.begin(), warp->lanes.end());
    exchange_clocks(all);
    for (Thread* other : b.leaders) m.wake(*other);
    b.leaders.clear();
    b.waiting.clear();
    m.release_lanes();
}

void sync_block(Where w) { sync_threads(0, machine().launch.threads, w); }

void sync_warp(Where w) {
    Machine& m = machine();
    m.step(w);
    if (!m.gather("bar.warp.sync", w, kAllLanes, false)) return;
    std::vector<Thread*> lanes;
    for (u32 rest = m.gathered(); rest != 0; rest &= rest - 1)
        lanes.push_back(m.thread().warp->lanes[static_cast<u32>(__builtin_ctz(rest))]);
    exchange_clocks(lanes);
    m.release_lanes();
}

// PTX ISA, barrier.cluster: arrive releases, wait acquires, both at cluster scope; exited threads do not
// count.
void check_cluster_barrier() {
    Machine& m = machine();
    if (m.cluster_waiting.empty() || m.cluster_waiting.size() != m.live) return;
    exchange_clocks(m.cluster_waiting);
    m.wake_all(m.cluster_waiting);
}

void sync_cluster(Where w) {
    Machine& m = machine();
    m.step(w);
    if (m.gather("barrier.cluster.arrive.aligned", w)) m.release_lanes();
    m.cluster_waiting.push_back(&m.thread());
    if (m.cluster_waiting.size() == m.live) {
        exchange_clocks(m.cluster_waiting);
        m.cluster_waiting.pop_back();
        return m.wake_all(m.cluster_waiting);
    }
    m.block_on([&m] {
        return text("the barrier of the cluster: %zu of %u threads", m.cluster_waiting.size(), m.live);
    });
}

// PTX ISA, setmaxnreg: all warps of a warpgroup execute the same one, and meet before the next.
static void compare_budgets(Warp& warp, const Thread& t, u32 registers, const char* what) {
    Machine& m = machine();
    Block& block = *t.block;
    const u32 first = warp.index / 4 * 4;
    if (block.warps.size() < first + 4) m.fault(text("%s: no whole warpgroup executes it", what));
    const std::size_t before = warp.budgets.size();
    for (u32 w = first; w < first + 4; w++) {
        const Warp& other = block.warps[w];
        const u32 lane = other.lanes.front()->id;
        if (other.budgets.size() > before && other.budgets[before].registers != registers)
            m.fault(text("%s: warps %u and %u of one warpgroup ask for %u and %u registers", what, warp.index,
                         w, registers, other.budgets[before].registers));
        if (before == 0 || w == warp.index) continue;
        if (other.budgets.size() < before || t.clocks.order(lane) < other.budgets[before - 1].clock)
            m.fault(text("%s: warp %u has not met warp %u since the last one", what, warp.index, w));
    }
    const Thread& lane = *warp.lanes.front();
    warp.budgets.push_back({registers, lane.clocks.order(lane.id)});
}

// PTX ISA, setmaxnreg: 24..256 in steps of 8; .inc waits until the block's pool has what it asks for.
void set_registers(u32 registers, bool raise, Where w) {
    Machine& m = machine();
    m.step(w);
    const char* what = raise ? "setmaxnreg.inc" : "setmaxnreg.dec";
    if (registers < 24 || registers > 256 || registers % 8 != 0)
        m.fault(text("%s: %u registers", what, registers));
    if (!m.gather(what, w)) return;
    Thread& t = m.thread();
    Warp& warp = *t.warp;
    Block& block = *t.block;
    if (raise ? registers < warp.registers : registers > warp.registers)
        m.fault(text("%s: to %u from %u", what, registers, warp.registers));
    compare_budgets(warp, t, registers, what);
    if (raise) {
        const u32 need = registers - warp.registers;
        while (block.free_registers < need) {
            block.wait_for_registers.push_back(&t);
            m.block_on([&block, need] {
                return text("setmaxnreg.inc: %u more registers a thread, the pool has %u", need,
                            block.free_registers);
            });
        }
        block.free_registers -= need;
    } else {
        block.free_registers += warp.registers - registers;
        m.wake_all(block.wait_for_registers);
    }
    warp.registers = registers;
    m.release_lanes();
}

// PTX ISA, griddepcontrol: .wait makes the memory operations of prerequisite grids visible to the grid.
void wait_for_prior_kernels(Where w) {
    Machine& m = machine();
    m.step(w);
    m.waited = true;
    m.thread().clocks.advance(m.components - 1, 1);
}

void check_prior_kernels(const char* what) {
    Machine& m = machine();
    if (m.thread().clocks.visible(m.components - 1) == 0)
        m.fault(text("%s before griddepcontrol.wait: a prior kernel may still use the memory", what));
}

// Only a hint here: the next kernel waits for this one's end before it looks at memory (PTX ISA,
// griddepcontrol).
void launch_next_kernel(Where w) { machine().step(w); }

}  // namespace dgj::emu
