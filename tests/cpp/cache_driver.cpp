// Drives csrc/cache with a compiler that is a counter, and with a file system that can fail.
//   key | get | get-twice | threads N | keys N | find | root | hold | hold-fork | fork | drop | forget
//   parse FILE | sha FILE

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "cache/entry.hpp"
#include "cache/lock.hpp"
#include "cache/roots.hpp"
#include "cache_world.hpp"
#include "compile/text_file.hpp"

namespace {

using driver::Arguments;
using driver::source_of;

driver::FaultFs& fault_fs() {
    static driver::FaultFs fs;
    return fs;
}

void print_kernel(const std::shared_ptr<const dgj::CachedKernel>& kernel, const dgj::KernelSource& source,
                  double wall_ms) {
    constexpr const char* kOrigins[] = {"memory", "disk", "compiled"};
    dgj::JsonObject out;
    if (kernel == nullptr) {
        out.add("origin", "none");
    } else {
        out.add("origin", kOrigins[static_cast<int>(kernel->origin)]);
        out.add("key", dgj::to_hex(kernel->key));
        out.add("ms", kernel->milliseconds);
        out.add("meta", kernel->meta);
        out.add("right_bytes", std::int64_t{kernel->cubin == driver::right_image(source)});
        out.add("wall_ms", wall_ms);
        out.add("calls", fault_fs().take_counts());
        out.add("hooked", std::int64_t{fault_fs().hooked()});
    }
    out.add("compiles", static_cast<std::int64_t>(dgj::compile_count()));
    driver::print(out);
}

void get(const Arguments& arguments, const std::string& suffix = "") {
    const dgj::KernelSource source = source_of(arguments, suffix);
    const auto start = std::chrono::steady_clock::now();
    try {
        const auto kernel = dgj::get_or_compile(source, "plan of " + source.text);
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
        print_kernel(kernel, source, took.count());
    } catch (const dgj::Error& error) {
        driver::print_error(error);
    }
}

// Several processes begin at the same moment: --start-at is in seconds since 1970.
void wait_for_start(const Arguments& arguments) {
    const double at = std::stod(arguments.get("start-at", "0"));
    const std::chrono::duration<double> since(at);
    std::this_thread::sleep_until(std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(since)));
}

// What happens between two system calls: "unlink A", "touch A", "rename A B".
void set_hook(const Arguments& arguments) {
    const std::vector<std::string> words = arguments.all("hook");
    if (words.empty()) return;
    fault_fs().set_hook([words] {
        int result = -1;
        if (words.at(0) == "unlink") result = ::unlink(words.at(1).c_str());
        if (words.at(0) == "rename") result = ::rename(words.at(1).c_str(), words.at(2).c_str());
        if (words.at(0) == "touch") result = ::utimensat(AT_FDCWD, words.at(1).c_str(), nullptr, 0);
        if (result != 0) std::abort();
    });
}

void threads(const Arguments& arguments, int count) {
    std::vector<std::thread> all;
    for (int i = 0; i < count; ++i) all.emplace_back([&] { get(arguments); });
    for (std::thread& one : all) one.join();
}

// Holds the key's lock until killed; "hold-fork" leaves a child behind that shares every descriptor.
void hold(const Arguments& arguments, bool with_child) {
    const dgj::CacheKey key = dgj::cache_key(source_of(arguments));
    if (!dgj::prepare_writable_root(dgj::real_fs(), dgj::cache_root()).empty()) std::abort();
    const dgj::KeyLock lock(dgj::real_fs(), dgj::version_folder(dgj::cache_root()), key,
                            std::chrono::seconds(1));
    const pid_t child = with_child ? fork() : -1;
    if (child == 0) {
        close(STDOUT_FILENO);
        std::this_thread::sleep_for(std::chrono::seconds(60));
        std::_Exit(0);
    }
    dgj::JsonObject out;
    out.add("held", std::int64_t{lock.outcome() == dgj::KeyLock::Outcome::kHeld});
    out.add("child", std::int64_t{child});
    driver::print(out);
    std::this_thread::sleep_for(std::chrono::seconds(60));
}

// A thread is compiling one key while the process forks; the child asks for that key, another one, and one in
// memory.
void fork_while_compiling(const Arguments& arguments) {
    get(arguments, " before");
    std::thread busy([&] { get(arguments, " busy"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(arguments.get("sleep", "0")) / 2));
    const pid_t child = fork();
    if (child == 0) {
        for (const char* suffix : {" before", " other", " busy"}) get(arguments, suffix);
        std::_Exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    busy.join();
    if (status != 0) std::abort();
}

// parse_entry over damaged copies of one entry: every length, every bit, one byte more. Prints how many were
// accepted.
void parse(const Arguments& arguments, const std::string& path) {
    const std::string text = dgj::read_text_file(path).value();
    const dgj::CacheKey key = dgj::cache_key(source_of(arguments));
    std::int64_t truncated = 0, flipped = 0, extended = 0, sound = 0;
    dgj::Entry entry;
    const auto accepts = [&](const std::string& file) {
        return dgj::parse_entry(std::as_bytes(std::span(file)), key, false, entry).empty();
    };
    sound += accepts(text);
    for (std::size_t n = 0; n < text.size(); ++n) truncated += accepts(text.substr(0, n));
    for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
        std::string damaged = text;
        damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
        flipped += accepts(damaged);
    }
    extended += accepts(text + '\0');
    dgj::JsonObject out;
    out.add("sound", sound);
    out.add("truncated", truncated);
    out.add("flipped", flipped);
    out.add("extended", extended);
    driver::print(out);
}

void print_digests(const std::string& path) {
    const std::string text = dgj::read_text_file(path).value();
    for (std::size_t n = 0; n <= text.size(); ++n) {
        dgj::JsonObject out;
        dgj::Sha256 portable(dgj::Sha256::portable());
        portable.update(std::string_view(text).substr(0, n / 3));  // an uneven split crosses block borders
        portable.update(std::string_view(text).substr(n / 3, n - n / 3));
        out.add("portable", dgj::to_hex(portable.finish()));
        if (dgj::Sha256::hardware() != nullptr) {
            dgj::Sha256 hardware(dgj::Sha256::hardware());
            hardware.update(std::string_view(text).substr(0, n));
            out.add("hardware", dgj::to_hex(hardware.finish()));
        }
        driver::print(out);
    }
}

void print_text(const char* name, const std::string& text) {
    dgj::JsonObject out;
    out.add(name, text);
    driver::print(out);
}

int run(const Arguments& arguments) {
    const std::vector<std::string>& words = arguments.words;
    const std::string command = words.at(0);
    if (command == "key") print_text("key", dgj::to_hex(dgj::cache_key(source_of(arguments))));
    else if (command == "get") get(arguments);
    else if (command == "get-twice") get(arguments), get(arguments);
    else if (command == "threads") threads(arguments, std::stoi(words.at(1)));
    else if (command == "keys") {
        for (int i = 0; i < std::stoi(words.at(1)); ++i) {
            get(arguments, " " + std::to_string(i));
            fault_fs().add_hours(std::stoi(arguments.get("hours-between", "0")));
        }
    } else if (command == "find") {
        const dgj::KernelSource source = source_of(arguments);
        print_kernel(dgj::find_cached(source), source, 0);
    } else if (command == "root") print_text("root", dgj::cache_root());
    else if (command == "hold") hold(arguments, false);
    else if (command == "hold-fork") hold(arguments, true);
    else if (command == "fork") fork_while_compiling(arguments);
    else if (command == "drop") {
        get(arguments);
        dgj::drop_from_cache(dgj::cache_key(source_of(arguments)));
        get(arguments);
    } else if (command == "forget") {
        get(arguments);
        dgj::forget_memory_cache();
        get(arguments);
    } else if (command == "parse") parse(arguments, words.at(1));
    else if (command == "sha") print_digests(words.at(1));
    else return 2;
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const Arguments arguments(argc, argv);
    driver::log_to_stderr();
    // Before anything is read from the environment: the tests start as root and become nobody.
    if (const int uid = std::stoi(arguments.get("setuid", "-1"));
        uid >= 0 && setuid(static_cast<uid_t>(uid)) != 0)
        return 4;
    if (const int most = std::stoi(arguments.get("file-descriptors", "-1")); most >= 0) {
        const rlimit limit{static_cast<rlim_t>(most), static_cast<rlim_t>(most)};
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 4;
    }
    driver::set_world(arguments, fault_fs());
    set_hook(arguments);
    wait_for_start(arguments);
    try {
        return run(arguments);
    } catch (const dgj::Error& error) {
        driver::print_error(error);
        return 0;
    }
}
