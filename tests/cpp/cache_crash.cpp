// Kills processes that use the cache, at chosen system calls, and looks at what they leave behind.
//   --kills N: spread over all fault points      --each N: every fault point N times
//   --seed S      --parts P --part I: with --each, only every P-th fault point, beginning with I + 1
// DGJ_CACHE_DIR is the folder; a small DGJ_CACHE_MAX_SIZE makes eviction part of the work. Each turn a child
// gets a few kernels, from a folder with litter, old stamps and now and then a damaged entry, and is killed
// before, in or after one call. Then every visible entry must be sound, and another child must get the same
// kernels, right and without waiting.

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "cache/inspect.hpp"
#include "cache_world.hpp"

namespace {

namespace files = std::filesystem;
using driver::Arguments;

constexpr int kKernels = 6, kPerTurn = 2;
constexpr const char* kModes[] = {"kill", "die", "half"};
constexpr int kWrong = 3;  // exit status of a child that got a wrong kernel

struct Totals {
    std::int64_t kills = 0, turns = 0, points = 0, unsound = 0, wrong = 0, warnings = 0;
};

struct Shared {  // seen by parent and children
    int calls = 0;
    int complaints = 0;
};

class Crasher {
public:
    explicit Crasher(const Arguments& arguments)
        : arguments_(arguments), random_(static_cast<unsigned>(std::stoul(arguments.get("seed", "1")))),
          root_(dgj::inspect_roots().roots.primary) {
        void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                            0);
        if (memory == MAP_FAILED) std::abort();
        shared_ = ::new (memory) Shared();
        core_dumps_off();
    }

    Totals spread(int kills) {
        find_points();
        for (int i = 0; totals_.kills < kills && i < 10 * kills; ++i) {
            turn(1 + i % points_, kModes[i / points_ % 3]);
        }
        return totals_;
    }

    Totals each(int kills, int parts, int part) {
        find_points();
        for (int point = 1 + part; point <= points_; point += parts) {
            const std::int64_t before = totals_.kills;
            for (int i = 0; totals_.kills - before < kills && i < 20 * kills; ++i) turn(point, kModes[i % 3]);
        }
        return totals_;
    }

    // Litter that the crashes left, now old, must go with the next entry.
    std::int64_t litter_after_an_hour() {
        for (const auto& file : dgj::list_unfinished(root_)) make_old(file.path);
        child({kKernels}, "", 0);
        return static_cast<std::int64_t>(dgj::list_unfinished(root_).size());
    }

private:
    static void core_dumps_off() {
        const rlimit none{0, 0};
        setrlimit(RLIMIT_CORE, &none);
    }

    unsigned roll(unsigned sides) { return static_cast<unsigned>(random_()) % sides; }

    // As many calls as one child in ten makes, over many states of the folder. What only rarer states reach
    // is the same code once more, for another kernel.
    void find_points() {
        std::vector<int> calls;
        for (int i = 0; i < 100; ++i) {
            disturb();
            child(some_kernels(), "", 0);
            calls.push_back(shared_->calls);
        }
        std::sort(calls.begin(), calls.end());
        points_ = calls[calls.size() * 9 / 10];
        totals_.points = points_;
    }

    std::vector<int> some_kernels() {
        std::vector<int> kernels;
        for (int i = 0; i < kPerTurn; ++i) kernels.push_back(static_cast<int>(roll(kKernels)));
        return kernels;
    }

    void turn(int point, const char* mode) {
        ++totals_.turns;
        disturb();
        const std::vector<int> kernels = some_kernels();
        const int status = child(kernels, mode, point);
        totals_.kills += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        judge(status);
        for (const dgj::EntryFile& file : dgj::list_entries(dgj::real_fs(), root_)) {
            const bool ours = damaged_.contains(file.seen.st_ino);
            if (!ours && !dgj::inspect_entry(file, true).problem.empty()) ++totals_.unsound;
        }
        shared_->complaints = 0;
        judge(child(kernels, "", 0));
        if (damaged_.empty()) totals_.warnings += shared_->complaints;
        else heal();
    }

    // A damaged entry that nobody asked for would be taken for a crash's work later on.
    void heal() {
        for (const dgj::EntryFile& file : dgj::list_entries(dgj::real_fs(), root_)) {
            if (!dgj::inspect_entry(file, true).problem.empty()) files::remove(file.path);
        }
    }

    void judge(int status) {
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        totals_.wrong += !killed && status != 0;
    }

    int child(const std::vector<int>& kernels, const char* mode, int point) {
        const pid_t pid = fork();
        if (pid == 0) {
            alarm(30);  // one that waits for a lock of the dead dies of SIGALRM, which counts as wrong
            work(kernels, mode, point);
        }
        int status = 0;
        waitpid(pid, &status, 0);
        return status;
    }

    [[noreturn]] void work(const std::vector<int>& kernels, const char* mode, int point) {
        static driver::FaultFs fs;
        static Shared* shared = shared_;
        if (point > 0) fs.add("any:" + std::to_string(point) + ":" + mode);
        driver::set_world(arguments_, fs);
        dgj::set_log_sink([](dgj::LogLevel, const std::string& line) {
            shared->complaints += !line.starts_with("compiled plan");
        });
        int result = 0;
        for (int kernel : kernels) {
            const dgj::KernelSource source = driver::source_of(arguments_, " " + std::to_string(kernel));
            if (dgj::get_or_compile(source, "plan")->cubin != driver::right_image(source)) result = kWrong;
        }
        shared_->calls = fs.calls();
        std::_Exit(result);
    }

    static void make_old(const std::string& path) {
        const timespec old[2] = {{.tv_sec = 1'700'000'000, .tv_nsec = 0},
                                 {.tv_sec = 1'700'000'000, .tv_nsec = 0}};
        utimensat(AT_FDCWD, path.c_str(), old, AT_SYMLINK_NOFOLLOW);
    }

    // What a folder may look like: gone, with litter, with entries unused for long, with a damaged one.
    void disturb() {
        if (roll(16) == 0) files::remove_all(root_);
        const std::vector<dgj::EntryFile> entries = dgj::list_entries(dgj::real_fs(), root_);
        damaged_.clear();
        if (entries.empty()) return;
        if (roll(4) == 0) {
            for (const dgj::EntryFile& file : entries) make_old(file.path);
        }
        if (roll(4) == 0) {
            const std::string litter = root_ + "/v1/tmp/litter";
            std::ofstream(litter) << "unfinished";
            make_old(litter);
        }
        if (roll(4) == 0) {
            const dgj::EntryFile& victim = entries[roll(static_cast<unsigned>(entries.size()))];
            std::fstream(victim.path, std::ios::in | std::ios::out | std::ios::binary).seekp(70).put('\x01');
            damaged_.insert(victim.seen.st_ino);
        }
    }

    const Arguments& arguments_;
    std::mt19937 random_;
    std::string root_;
    Shared* shared_ = nullptr;
    std::set<ino_t> damaged_;
    Totals totals_;
    int points_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    const Arguments arguments(argc, argv);
    Crasher crasher(arguments);
    const int each = std::stoi(arguments.get("each", "0"));
    const int parts = std::stoi(arguments.get("parts", "1")), part = std::stoi(arguments.get("part", "0"));
    const Totals totals = each > 0 ? crasher.each(each, parts, part)
                                   : crasher.spread(std::stoi(arguments.get("kills", "100")));
    dgj::JsonObject out;
    out.add("kills", totals.kills);
    out.add("turns", totals.turns);
    out.add("points", totals.points);
    out.add("unsound", totals.unsound);
    out.add("wrong", totals.wrong);
    out.add("warnings", totals.warnings);
    out.add("litter", crasher.litter_after_an_hour());
    driver::print(out);
    return 0;
}
