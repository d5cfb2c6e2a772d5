// LaunchPlan: a kernel plan that is loaded, found without a lock once a problem and its m were seen.
//
//   ProblemKey --thread's table--> ProblemEntry --slot of m--> MNode --> LaunchPlan
//                 | miss                           | miss
//              shared lock, all problems        shared lock, all m of the problem
//                 | miss                           | miss
//              new entry                        plan(); compile and load unless another m has the same plan
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "plan/plan.hpp"
#include "runtime/load.hpp"

namespace dgj::runtime {

struct LaunchPlan {
    KernelPlan plan;
    KernelShape shape;
    LoadedKernel kernel;
};

// A GemmProblem and a device in two words, so that comparing costs nothing.
struct ProblemKey {
    std::uint64_t extents = 0;  // n | k << 32
    std::uint64_t rest = 0;  // device | d_dtype << 16 | batch_invariant << 24 | layout << 25 | extras << 26 |
                             // 1 << 32 (never 0)
    bool operator==(const ProblemKey&) const = default;

    static ProblemKey make(int device, std::int64_t n, std::int64_t k, DType d_dtype, bool batch_invariant,
                           GroupLayout layout = GroupLayout::kDense, bool extras = false) {
        return {static_cast<std::uint64_t>(n) | static_cast<std::uint64_t>(k) << 32,
                static_cast<std::uint64_t>(static_cast<std::uint16_t>(device)) |
                    static_cast<std::uint64_t>(d_dtype) << 16 |
                    static_cast<std::uint64_t>(batch_invariant) << 24 |
                    static_cast<std::uint64_t>(layout) << 25 | static_cast<std::uint64_t>(extras) << 26 |
                    std::uint64_t{1} << 32};
    }
    std::uint64_t hash() const {
        std::uint64_t h = (extents ^ (rest << 23)) * 0x9E3779B97F4A7C15ull;
        return h ^ h >> 32;
    }
};

// What one m of a problem leads to. Never changes, never freed.
struct MNode {
    std::int64_t m = 0;
    const LaunchPlan* plan = nullptr;
    std::uint32_t grid = 0;  // blocks when all SMs of the device may be used
};

class ProblemEntry {
public:
    ProblemEntry(const ProblemKey& key, const GemmProblem& problem, const DeviceState& device)
        : key(key), problem(problem), device(device) {}

    // nullptr when this m has not been seen.
    const MNode* find(std::int64_t m) {
        const MNode* node = slots_[slot(m)].load(std::memory_order_acquire);
        if (node != nullptr && node->m == m) [[likely]]
            return node;
        return find_all(m);
    }
    // Plans, compiles and loads what is missing.
    const MNode& obtain(std::int64_t m, StreamHandle stream);

    const ProblemKey key;
    const GemmProblem problem;
    const DeviceState& device;

private:
    static constexpr std::size_t kSlots = 1024;  // decode sizes below it never collide
    static std::size_t slot(std::int64_t m) { return static_cast<std::size_t>(m) % kSlots; }
    const MNode* find_all(std::int64_t m);

    std::array<std::atomic<const MNode*>, kSlots> slots_{};
    std::shared_mutex mutex_;
    std::unordered_map<std::int64_t, MNode> all_;  // its nodes stay where they are
};

// nullptr when the problem has not been seen.
ProblemEntry* find_problem(const ProblemKey& key);
ProblemEntry& obtain_problem(const ProblemKey& key, const GemmProblem& problem, int device);

const MNode& obtain_node(const ProblemKey& key, const GemmProblem& problem, int device, std::int64_t m,
                         StreamHandle stream);

// A thread's memory of the problems it has seen: a model has a handful of weight shapes.
class RecentProblems {
public:
    const MNode* find(const ProblemKey& key, std::int64_t m) {
        Known& known = known_[key.hash() % known_.size()];
        if (!(known.key == key)) [[unlikely]] {
            ProblemEntry* entry = find_problem(key);
            if (entry == nullptr) return nullptr;
            known = {key, entry};
        }
        return known.entry->find(m);
    }

private:
    struct Known {
        ProblemKey key;
        ProblemEntry* entry;
    };
    std::array<Known, 64> known_;
};

// Compiles and loads `plan` unless that is done. See load_kernel about `stream`.
const LaunchPlan& obtain_plan(const KernelPlan& plan, int device, std::optional<StreamHandle> stream);

}  // namespace dgj::runtime
