#include "runtime/launch_plan.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "emit/emit.hpp"

namespace dgj::runtime {
namespace {

struct KeyHash {
    std::size_t operator()(const ProblemKey& key) const { return key.hash(); }
};

struct Registry {
    std::shared_mutex mutex;  // guards the maps; held for look-ups and insertions only, never while compiling
    std::unordered_map<ProblemKey, std::unique_ptr<ProblemEntry>, KeyHash> problems;
    std::map<std::pair<int, KernelPlan>, std::unique_ptr<LaunchPlan>> plans;
};

// Never destroyed: a thread may still launch while the process exits.
Registry& registry() {
    static Registry& instance = *std::make_unique<Registry>().release();
    return instance;
}

const LaunchPlan* find_plan(Registry& r, const std::pair<int, KernelPlan>& key) {
    const std::shared_lock lock(r.mutex);
    const auto it = r.plans.find(key);
    return it == r.plans.end() ? nullptr : it->second.get();
}

}  // namespace

const LaunchPlan& obtain_plan(const KernelPlan& plan, int device, std::optional<StreamHandle> stream) {
    Registry& r = registry();
    const std::pair<int, KernelPlan> key{device, plan};
    if (const LaunchPlan* known = find_plan(r, key)) return *known;

    auto made = std::make_unique<LaunchPlan>();
    made->plan = plan;
    made->shape = kernel_shape(plan);
    made->kernel = load_kernel(emit(plan), to_string(plan), device, made->shape.smem_bytes, stream);
    const std::unique_lock lock(r.mutex);
    const auto [it, inserted] = r.plans.try_emplace(key, nullptr);
    // Two threads may have loaded it (the cache made them share one compile); the second copy is given back.
    if (inserted) it->second = std::move(made);
    else driver().library_unload(made->kernel.library);
    return *it->second;
}

ProblemEntry* find_problem(const ProblemKey& key) {
    Registry& r = registry();
    const std::shared_lock lock(r.mutex);
    const auto it = r.problems.find(key);
    return it == r.problems.end() ? nullptr : it->second.get();
}

ProblemEntry& obtain_problem(const ProblemKey& key, const GemmProblem& problem, int device) {
    validate(problem);
    auto made = std::make_unique<ProblemEntry>(key, problem, device_state(device));
    Registry& r = registry();
    const std::unique_lock lock(r.mutex);
    return *r.problems.try_emplace(key, std::move(made)).first->second;
}

const MNode& obtain_node(const ProblemKey& key, const GemmProblem& problem, int device, std::int64_t m,
                         StreamHandle stream) {
    ProblemEntry* entry = find_problem(key);
    if (entry == nullptr) entry = &obtain_problem(key, problem, device);
    return entry->obtain(m, stream);
}

const MNode* ProblemEntry::find_all(std::int64_t m) {
    const std::shared_lock lock(mutex_);
    const auto it = all_.find(m);
    if (it == all_.end()) return nullptr;
    slots_[slot(m)].store(&it->second, std::memory_order_release);
    return &it->second;
}

const MNode& ProblemEntry::obtain(std::int64_t m, StreamHandle stream) {
    const LaunchPlan& chosen = obtain_plan(plan(problem, m, *device.profile), device.index, stream);
    const MNode node{m, &chosen, grid_blocks(chosen.plan, m, device.sms)};
    const std::unique_lock lock(mutex_);
    const MNode& kept = all_.try_emplace(m, node).first->second;
    slots_[slot(m)].store(&kept, std::memory_order_release);
    return kept;
}

void load_plan(const KernelPlan& plan, int device) { obtain_plan(plan, device, std::nullopt); }

}  // namespace dgj::runtime
