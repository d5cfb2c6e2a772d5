// The machine: threads, warps, blocks, one cluster at a time, and the asynchronous operations in flight.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/api.hpp"
#include "runtime/clocks.hpp"
#include "runtime/fibre.hpp"
#include "runtime/shadow.hpp"
#include "runtime/tensor_map.hpp"

namespace dgj::emu {

constexpr u32 kSharedBase = 1024;  // the first address of dynamic shared memory
constexpr u32 kWarp = 32, kGroup = 128, kAllLanes = 0xffffffff;
constexpr u32 kBarriersOfBlock = 64;  // mbarriers that a block may have
constexpr u32 kNamedBarriers = 16;

struct Block;
struct Warp;
struct Operation;

struct Thread {
    Fibre fibre;
    ThreadPlace place{};
    Block* block = nullptr;
    Warp* warp = nullptr;
    u32 id = 0;  // in the cluster; also its component of the clocks
    Clocks clocks;
    enum class State : std::uint8_t { kReady, kBlocked, kDone } state = State::kReady;
    Where where;    // its last operation
    u32 spins = 0;  // strong reads since the thread last did something else
    u32 waits = 0;  // for mbarriers since the lanes of the warp last met
    std::function<std::string()> explain;
    // Bulk groups: stores since the last commit, and groups not yet waited for.
    std::vector<std::shared_ptr<Operation>> uncommitted;
    std::deque<std::vector<std::shared_ptr<Operation>>> groups;
    std::vector<std::shared_ptr<Operation>> copies;  // cp.async not yet covered by an arrive
    u64 exchange = 0;                                // value in a warp collective
    bool leads = false;                              // continues a collective whose other lanes have exited
    u32 addresses = 0;
    u32 tiles[4] = {};
    // What the last fence released, and what strong reads since then may acquire at the next one.
    std::unique_ptr<Clocks> fenced, readable;
    u8* accumulator = nullptr;
};

struct Product {  // one wgmma of one warp: 16 rows of A times all of B
    u64 a, b;
    Wgmma form;
    bool accumulate, done = false;
    Where where;
    u8* d[kWarp];
    std::vector<std::array<u32, 4>> registers;  // A of each lane, when it comes in registers
    std::vector<u32> sums;             // [16][n], bits; carried on to the next on the same accumulators
    std::shared_ptr<Product> before;   // the product in flight on the same accumulators
    std::vector<std::uint16_t> reads;  // 16-byte units of shared memory
};

// Lanes of a warp that execute one .sync instruction together.
struct Gathering {
    const char* what;
    u32 members, arrived;
    bool aligned;
    Where where;  // of the first lane
};

struct Warp {
    std::vector<Thread*> lanes;
    u32 index = 0;      // in the block
    u32 component = 0;  // of the clocks
    u32 clock = 0;
    u32 met_component = 0, met = 0;  // how often all lanes have met in a .sync instruction
    u32 priority = 0;
    std::vector<u32> ready;  // lanes
    std::vector<Gathering> gatherings;
    u32 exited = 0;  // lanes
    u32 registers = 0;
    struct Budget {
        u32 registers, clock;  // of the warp's first lane
    };
    std::vector<Budget> budgets;  // of its setmaxnreg
    bool fenced = false;          // wgmma.fence since accumulators were last touched
    std::vector<std::shared_ptr<Product>> uncommitted;
    std::deque<std::vector<std::shared_ptr<Product>>> groups;
    std::vector<u64> products;  // descriptors issued, compared between the warps of a warpgroup
};

struct Mbarrier {
    u32 index = 0;  // of the block's
    u32 count = 0, pending = 0, phase = 0;
    i32 bytes = 0;  // still to come; negative when they came before they were expected
    bool fenced = false;
    u32 component = 0;
    Thread* initialised_by = nullptr;
    u32 initialised_clock = 0;
    Clocks clocks, completed;   // of all arrivals; of those up to the last completed phase
    Clocks far, far_completed;  // what arrivals of cluster scope hand over to waits of cluster scope
    std::vector<Thread*> waiting;
    struct Passed {
        const Thread* thread;
        u32 clock, met;  // of the thread, of its warp
    };
    std::vector<Passed> passed;  // who has seen the latest completed phase
};

struct NamedBarrier {
    u32 threads = 0;
    std::vector<Warp*> waiting;
    std::vector<Thread*> leaders;  // of these warps: they wake their lanes
};

// Memory that atomics work on: who has, and what a release of theirs hands over.
struct AtomicPlace {
    u32 block = 0, cluster = 0;
    Scope scope = Scope::kCta;
    Clocks released;
    std::unordered_map<u32, u32> writers;  // component -> clock
};

struct Block {
    u32 index = 0, rank = 0;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<u8> memory;  // dynamic shared memory
    Shadow shadow;
    std::unordered_map<u32, Mbarrier> barriers;  // by address
    NamedBarrier named[kNamedBarriers];
    std::unordered_map<u32, AtomicPlace> atomics;  // by address
    u32 live = 0;
    u32 free_registers = 0;
    std::vector<Thread*> wait_for_registers;
    std::vector<Operation*> reading;  // bulk operations that read this block's memory and were not waited for
};

// An asynchronous copy. Its steps take effect in order, each at a time that the schedule picks.
struct Operation {
    std::vector<std::function<void()>> steps;
    u32 next = 0;
    std::string what;
    Where where;
    u32 thread = 0;  // that issued it
    Block* source = nullptr;
    u32 source_address = 0, source_bytes = 0;
    bool read_over = false;  // its thread has waited for it to have read its source
    bool done() const { return next == steps.size(); }
};

struct Buffer {
    u64 begin, bytes;
    bool writable;
    // For each byte, what this launch did to it; in pages, since rows may lie far apart.
    static constexpr u64 kPage = 4096;
    std::unordered_map<u64, std::array<u8, kPage>> written;
    static constexpr u8 kWritten = 1, kCombined = 2;
};

struct LaunchArguments {
    void (*entry)(void**);
    void** parameters;
    u32 blocks, threads, cluster, shared_bytes;
    u64 seed;
    bool cut_sums;          // of the tensor core, as the hardware does; else they are exact and rounded once
    std::vector<u32> left;  // by kernels before, again and again in all of shared memory
};

// A rule was broken; what() says which, where and by whom. Thrown on the scheduler's stack only.
struct Fault {
    std::string text;
};

class Machine {
public:
    explicit Machine(const LaunchArguments& launch, std::vector<Buffer>& buffers);
    ~Machine();
    void run();

    // For the operations, on the stack of the current thread.
    Thread& thread() { return *current_; }
    void step(Where w);                                   // notes the line; may let others run
    void step_aside();                                    // lets others run: a loop may wait for them
    void block_on(std::function<std::string()> explain);  // until woken
    void wake(Thread& t);
    void wake_all(std::vector<Thread*>& waiting);
    // True in the last lane of `members`, which does the work and wakes the others with release_lanes.
    // aligned: all lanes of the warp at the same line; else exited lanes do not count.
    bool gather(const char* what, Where w, u32 members = kAllLanes, bool aligned = true);
    u32 gathered() const;  // the lanes that execute the current thread's collective
    void release_lanes();
    [[noreturn]] void fault(const std::string& text);
    void start(std::shared_ptr<Operation> operation);  // asynchronous operation
    void finish(Operation& operation);                 // all its steps, now
    bool is_early();                                   // an MMA starts to read at once
    u64 random(u64 below);
    std::string name(const Thread& t) const;
    std::string component_name(u32 component) const;

    const LaunchArguments& launch;
    std::vector<Buffer>& buffers;
    std::vector<std::unique_ptr<Block>> blocks;    // of the cluster that runs
    std::unordered_map<u64, AtomicPlace> atomics;  // in global memory
    u32 components = 0;                            // of the clocks; the last one is that of prior kernels
    std::vector<Thread*> cluster_waiting;
    u32 live = 0;
    bool waited = false;  // for prior kernels, any thread
    u64 switches = 0, operations = 0;

private:
    friend void fibre_main(void*);
    void run_cluster(u32 cluster);
    void build_cluster(u32 cluster);
    void advance_one();
    Thread* pick();
    void deadlock();
    void leave();  // back to the scheduler
    void after_exit(Thread& t);
    Gathering* gathering_of(const Thread& t);
    void meet(Warp& warp, const Gathering& g);
    void check_warpgroups(const Block& block);

    Fibre scheduler_;
    Thread* current_ = nullptr;
    std::vector<Warp*> ready_warps_;
    std::vector<std::shared_ptr<Operation>> pending_;
    std::string fault_;
    bool faulted_ = false;
    void* stacks_ = nullptr;
    std::size_t stacks_bytes_ = 0;
    u64 random_state_;
    enum class Timing { kEarly, kLate, kRandom } timing_;
    bool by_priority_ = false;
    u32 advance_chance_ = 0, yield_chance_ = 0;  // of 1024
};

Machine& machine();

[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);
std::string at(Where w);

// Shared memory of a block.
u8* shared_at(Block& block, u32 address, u32 bytes, u32 alignment, const char* what, Where w);
Mbarrier& barrier_at(Block& block, u32 address, const char* what, Where w);
Block& peer(u32 rank, const char* what, Where w);
Buffer& buffer_at(u64 address, u64 bytes, const char* what, Where w);
// Plain stores write a byte once; only reductions and atomics may meet on one.
void note_written(Buffer& buffer, u64 address, u64 bytes, bool combined, const char* what, Where w);
// The current phase of the mbarrier gets `bytes`.
void complete_bytes(Block& block, u32 address, u32 bytes);
// griddepcontrol.wait stands before the access, in this thread or ordered before it in another.
void check_prior_kernels(const char* what);
void check_cluster_barrier();  // completes it when all live threads wait there
void release(Thread& t);       // the thread's later accesses are not ordered by what it has just released

}  // namespace dgj::emu
