#include "plan/tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/env.hpp"
#include "base/json_value.hpp"
#include "base/log.hpp"
#include "base/version.hpp"

namespace dgj {
namespace {

constexpr std::uintmax_t kMostBytes = 64u << 20;  // a table of a large model has some hundred kilobytes

struct Row {
    std::int64_t m = 0;
    std::string plan;
};

// By device and problem, both as they are printed.
using Table = std::map<std::pair<std::string, std::string>, std::vector<Row>>;

std::string version_of(const JsonValue& root) {
    const JsonValue* format = root.member("format");
    const JsonValue* package = root.member("package");
    if (format == nullptr || format->number() == nullptr || package == nullptr || package->text() == nullptr)
        return "it is no tuning table";
    if (*format->number() != kTuningFormat)
        return fmt::format("its format is {}, and this version reads {}", *format->number(), kTuningFormat);
    if (*package->text() != kPackageVersion)
        return fmt::format("it is of version {}, and this is {}", *package->text(), kPackageVersion);
    return "";
}

const std::string* text_of(const JsonValue& object, std::string_view name) {
    const JsonValue* member = object.member(name);
    return member ? member->text() : nullptr;
}

// "" or why the table is not used.
std::string read_rows(const JsonValue& root, Table& table) {
    if (std::string problem = version_of(root); !problem.empty()) return problem;
    const JsonValue* winners = root.member("winners");
    if (winners == nullptr || winners->list() == nullptr) return "it has no list 'winners'";
    for (const JsonValue& row : *winners->list()) {
        const std::string *device = text_of(row, "device"), *problem = text_of(row, "problem"),
                          *plan = text_of(row, "plan");
        const JsonValue* m = row.member("m");
        const double rows = m && m->number() ? *m->number() : 0;
        if (!device || !problem || !plan || !(rows >= 1 && rows <= 1e15) || std::trunc(rows) != rows)
            return "a winner lacks 'device', 'problem', 'm' (a whole number of at least 1) or 'plan'";
        table[{*device, *problem}].push_back({static_cast<std::int64_t>(rows), *plan});
    }
    for (auto& [key, rows] : table)
        std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.m < b.m; });
    return "";
}

std::string read_file(const std::string& path, std::string& text) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) return "it cannot be opened";
    const auto size = file.tellg();
    if (size < 0) return "it cannot be read";
    if (static_cast<std::uintmax_t>(size) > kMostBytes) return "it is too large";
    text.resize(static_cast<std::size_t>(size));
    file.seekg(0);
    file.read(text.data(), size);
    return file ? "" : "it cannot be read";
}

std::shared_ptr<const Table> read_table() {
    auto table = std::make_shared<Table>();
    const std::string path = env::get(env::kTuning).value_or("");
    if (path.empty()) return table;
    std::string text;
    std::string problem = read_file(path, text);
    if (problem.empty()) {
        const JsonResult parsed = parse_json(text);
        problem = parsed.value ? read_rows(*parsed.value, *table) : parsed.problem;
    }
    if (problem.empty()) return table;
    log(LogLevel::kWarning,
        fmt::format("the tuning table {} is not used: {}; make it again with deep_gemm_jit.tune", path,
                    problem));
    return std::make_shared<Table>();
}

struct State {
    std::mutex mutex;
    std::shared_ptr<const Table> table;
    bool warned = false;  // of rows whose plan does not exist
    std::atomic<unsigned> generation{0};
};

State& state() {
    static State& instance = *std::make_unique<State>().release();  // outlives every thread
    return instance;
}

// Read outside of the mutex: a warning may need Python's lock. Of two threads that read it the first one's
// stays.
std::shared_ptr<const Table> table() {
    State& s = state();
    {
        const std::lock_guard guard(s.mutex);
        if (s.table) return s.table;
    }
    auto made = read_table();
    const std::lock_guard guard(s.mutex);
    if (!s.table) s.table = std::move(made);
    return s.table;
}

void warn_of_unknown(const std::string& plan) {
    State& s = state();
    {
        const std::lock_guard guard(s.mutex);
        if (std::exchange(s.warned, true)) return;
    }
    log(LogLevel::kWarning,
        fmt::format("the tuning table names a plan that its problem does not have, which is passed over, as "
                    "are further ones: {}",
                    plan));
}

}  // namespace

std::vector<std::optional<std::size_t>> tuned_winners(const GemmProblem& problem, const DeviceProfile& device,
                                                      const std::vector<KernelPlan>& plans,
                                                      const std::vector<std::int64_t>& steps) {
    std::vector<std::optional<std::size_t>> winners(steps.size());
    const std::shared_ptr<const Table> all = table();
    const auto found = all->find({std::string(device.name), to_string(problem)});
    if (found == all->end() || steps.empty()) return winners;

    std::map<std::string, std::size_t> index;
    for (std::size_t i = 0; i < plans.size(); i++) index.emplace(to_string(plans[i]), i);
    std::optional<std::size_t> last;  // the step of the measurement before
    for (const Row& row : found->second) {
        const auto known = index.find(row.plan);
        if (known == index.end()) {
            warn_of_unknown(row.plan);
            last.reset();
            continue;
        }
        const auto at = std::min(std::lower_bound(steps.begin(), steps.end(), row.m), steps.end() - 1);
        const auto step = static_cast<std::size_t>(at - steps.begin());
        winners[step] = known->second;
        if (last && winners[*last] == winners[step])
            for (std::size_t between = *last + 1; between < step; between++) winners[between] = winners[step];
        last = step;
    }
    return winners;
}

void forget_tuning() {
    State& s = state();
    const std::lock_guard guard(s.mutex);
    s.table.reset();
    s.warned = false;
    s.generation++;
}

unsigned tuning_generation() { return state().generation; }

}  // namespace dgj
