#include "compile/nvrtc.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/env.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/sha256.hpp"
#include "compile/elf.hpp"
#include "compile/nvrtc_find.hpp"
#include "compile/text_file.hpp"

namespace dgj {
namespace {

using Program = void*;  // nvrtcProgram
using Result = int;     // nvrtcResult; 0 is success

// NVRTC's C interface, as its documentation gives it; stable since CUDA 11.1.
struct Library {
    Result (*version)(int* major, int* minor) = nullptr;
    const char* (*error_string)(Result) = nullptr;
    Result (*create)(Program*, const char* text, const char* name, int headers,
                     const char* const* header_texts, const char* const* header_names) = nullptr;
    Result (*destroy)(Program*) = nullptr;
    Result (*compile)(Program, int options, const char* const* option_texts) = nullptr;
    Result (*log_size)(Program, std::size_t*) = nullptr;
    Result (*log)(Program, char*) = nullptr;
    Result (*cubin_size)(Program, std::size_t*) = nullptr;
    Result (*cubin)(Program, char*) = nullptr;
};

// Targets that old versions do not know, so that the message can say which version does.
struct ArchSince {
    std::string_view arch;
    int major, minor;
};
constexpr ArchSince kArchSince[] = {
    {"sm_100a", 12, 8}, {"sm_100f", 12, 9}, {"sm_103a", 12, 9}, {"sm_103f", 12, 9}, {"sm_120a", 12, 8},
};

struct State {
    std::mutex mutex;  // guards everything below; nothing is logged while it is held
    std::vector<std::string> site_packages;
    int (*driver_version)() = nullptr;
    std::optional<NvrtcIdentity> identity;
    std::optional<Library> library;
};

State& state() {
    static State& instance = []() -> State& {
        State& leaked = *std::make_unique<State>().release();  // outlives every static destructor and thread
        // A fork waits for a search or dlopen in progress, so that the child never inherits the mutex locked.
        pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                       [] { state().mutex.unlock(); });
        return leaked;
    }();
    return instance;
}

const NvrtcIdentity& identity_locked(State& s) {
    if (!s.identity) {
        NvrtcSearch search{.site_packages = s.site_packages, .driver_version = 0};
        if (s.driver_version != nullptr) search.driver_version = s.driver_version();
        s.identity = find_nvrtc(search);
    }
    return *s.identity;
}

template <class Function>
void load_symbol(void* handle, const NvrtcIdentity& who, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) {
        fail(ErrorKind::kCompile,
             "{} has no function {}: it is not a complete NVRTC; set DGJ_NVRTC to another one", who.path,
             name);
    }
}

void* open_library(const std::string& path, int visibility) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | visibility);
    if (handle == nullptr) {
        const char* reason = dlerror();
        fail(ErrorKind::kCompile,
             "{} could not be loaded: {}; reinstall it or set DGJ_NVRTC to another NVRTC", path,
             reason != nullptr ? reason : "unknown reason");
    }
    return handle;
}

const Library& library() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.library) return *s.library;
    const NvrtcIdentity& who = identity_locked(s);
    // NVRTC opens its builtins by name at the first compile. Version 13.0 has no run path, so that would find
    // nothing, or another toolkit's; a library that is already loaded under this name is taken instead.
    open_library(who.builtins, RTLD_GLOBAL);
    void* handle = open_library(who.path, RTLD_LOCAL);
    Library lib;
    load_symbol(handle, who, "nvrtcVersion", lib.version);
    load_symbol(handle, who, "nvrtcGetErrorString", lib.error_string);
    load_symbol(handle, who, "nvrtcCreateProgram", lib.create);
    load_symbol(handle, who, "nvrtcDestroyProgram", lib.destroy);
    load_symbol(handle, who, "nvrtcCompileProgram", lib.compile);
    load_symbol(handle, who, "nvrtcGetProgramLogSize", lib.log_size);
    load_symbol(handle, who, "nvrtcGetProgramLog", lib.log);
    load_symbol(handle, who, "nvrtcGetCUBINSize", lib.cubin_size);
    load_symbol(handle, who, "nvrtcGetCUBIN", lib.cubin);
    int major = 0, minor = 0;
    if (lib.version(&major, &minor) != 0 || major != who.major || minor != who.minor) {
        fail(ErrorKind::kCompile,
             "{} says that it is version {}.{}, but the libnvrtc-builtins beside it is {}.{}: the folder "
             "mixes two "
             "installations; reinstall NVRTC or set DGJ_NVRTC to another one",
             who.path, major, minor, who.major, who.minor);
    }
    s.library = lib;
    return *s.library;
}

class ProgramHandle {
public:
    ProgramHandle(const Library& lib, const KernelSource& source) : lib_(lib) {
        std::vector<const char*> names, texts;
        for (const NamedText& header : source.headers) {
            names.push_back(header.name.c_str());
            texts.push_back(header.text.c_str());
        }
        created_ = lib.create(&program_, source.text.c_str(), (source.entry + ".cu").c_str(),
                              static_cast<int>(names.size()), texts.data(), names.data());
    }
    ~ProgramHandle() {
        if (created_ == 0) lib_.destroy(&program_);
    }
    ProgramHandle(const ProgramHandle&) = delete;
    ProgramHandle& operator=(const ProgramHandle&) = delete;

    Result created() const { return created_; }
    Program get() const { return program_; }

    std::string log() const {
        std::size_t size = 0;
        if (created_ != 0 || lib_.log_size(program_, &size) != 0 || size <= 1) return "";
        std::string text(size, '\0');
        if (lib_.log(program_, text.data()) != 0) return "";
        text.resize(text.find('\0'));  // the size counts one final zero, with ptxas output two
        return text;
    }

    std::vector<std::byte> cubin() const {
        std::size_t size = 0;
        if (lib_.cubin_size(program_, &size) != 0) return {};
        std::vector<std::byte> image(size);
        if (size > 0 && lib_.cubin(program_, reinterpret_cast<char*>(image.data())) != 0) return {};
        return image;
    }

private:
    const Library& lib_;
    Program program_ = nullptr;
    Result created_ = 0;
};

// One file that shows everything the compiler saw: the program, then each header under its name.
std::string save_source(const std::string& folder, const KernelSource& source) {
    if (folder.empty()) return "";
    std::string text = source.text;
    for (const NamedText& header : source.headers) {
        text += "\n// ======== header \"" + header.name + "\" ========\n" + header.text;
    }
    const std::string digest = to_hex(sha256(std::as_bytes(std::span(text)))).substr(0, 16);
    return write_text_file(folder, source.entry + "." + source.arch + "." + digest + ".cu", text);
}

std::string not_writable(const std::string& folder) {
    return "DGJ_SAVE_SOURCE is '" + folder + "', where no file can be written";
}

std::string save_failed_source(const KernelSource& source, const std::string& failed_folder) {
    const std::string wanted = env::get(env::kSaveSource).value_or("");
    std::string saved = save_source(wanted, source);
    const std::string missed = saved.empty() && !wanted.empty() ? "; " + not_writable(wanted) : "";
    if (saved.empty()) saved = save_source(failed_folder, source);
    if (saved.empty()) saved = save_source(private_temporary_folder(), source);
    return (saved.empty() ? "could not be saved; set DGJ_SAVE_SOURCE to a writable folder"
                          : "was saved as " + saved) +
           missed;
}

[[noreturn]] void fail_compile(const std::string& reason, const KernelSource& source, const std::string& log,
                               const std::vector<std::string>& options, const std::string& failed_folder) {
    const NvrtcIdentity& who = nvrtc_identity();
    std::string joined;
    for (const std::string& option : options) joined += " " + option;
    fail(ErrorKind::kCompile,
         "compiling the kernel {} for {} failed: {}.\nNVRTC {}.{} ({})\noptions:{}\nsource: {}\nlog:\n{}",
         source.entry, source.arch, reason, who.major, who.minor, who.path, joined,
         save_failed_source(source, failed_folder), log.empty() ? "(empty)" : log);
}

}  // namespace

void set_search_paths(std::vector<std::string> site_packages) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.site_packages = std::move(site_packages);
}

void set_driver_version_source(int (*driver_version)()) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.driver_version = driver_version;
}

const NvrtcIdentity& nvrtc_identity() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return identity_locked(s);  // never changes once set, so the reference may leave the lock
}

std::vector<std::string> nvrtc_options(const std::string& arch) {
    return {"--gpu-architecture=" + arch, "-std=c++20", "--no-source-include", "--ptxas-options=-v"};
}

CompileResult nvrtc_compile(const KernelSource& source, const std::string& failed_folder) {
    const auto start = std::chrono::steady_clock::now();
    const NvrtcIdentity& who = nvrtc_identity();
    std::vector<std::string> options = nvrtc_options(source.arch);
    for (const ArchSince& since : kArchSince) {
        const bool too_old = who.major < since.major || (who.major == since.major && who.minor < since.minor);
        if (source.arch != since.arch || !too_old) continue;
        fail_compile(fmt::format("{} needs NVRTC {}.{} or newer; install one or set DGJ_NVRTC", since.arch,
                                 since.major, since.minor),
                     source, "", options, failed_folder);
    }
    const Library& lib = library();
    // NVRTC's own cache (12.9 and later; older ones reject the option) would store every kernel a second
    // time. This option and the next do not reach the code, so they stay out of nvrtc_options() and the key.
    if (who.major > 12 || who.minor >= 9) options.push_back("--no-cache");
    // Without declarations of textures and of the runtime's functions (12.4 and later): the same code,
    // sooner.
    if (who.major > 12 || who.minor >= 4) options.push_back("--minimal");
    const std::string save_folder = env::get(env::kSaveSource).value_or("");
    if (!save_folder.empty() && save_source(save_folder, source).empty())
        log(LogLevel::kWarning, not_writable(save_folder) + ": the source of a kernel is not saved there");

    const ProgramHandle program(lib, source);
    if (program.created() != 0) {
        fail_compile(lib.error_string(program.created()), source, "", options, failed_folder);
    }
    std::vector<const char*> option_texts;
    for (const std::string& option : options) option_texts.push_back(option.c_str());
    const Result result = lib.compile(program.get(), static_cast<int>(option_texts.size()),
                                      option_texts.data());
    CompileResult out;
    out.log = program.log();
    if (result != 0) fail_compile(lib.error_string(result), source, out.log, options, failed_folder);
    out.cubin = program.cubin();
    const std::string problem = image_problem(out.cubin, source.entry);
    if (!problem.empty()) {
        fail_compile("NVRTC reported success, but its image is unusable: " + problem, source, out.log,
                     options, failed_folder);
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    out.milliseconds = took.count();
    return out;
}

}  // namespace dgj
