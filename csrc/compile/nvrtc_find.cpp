// The search for NVRTC: one table of places, one loop. A candidate counts when a folder holds
// libnvrtc.so.<major> and the libnvrtc-builtins.so.<major>.<minor> that belongs to it, new enough for us and
// not too new for the driver. The *.alt.so twins in the wheels are other builds; their names do not match the
// prefixes below.

#include "compile/nvrtc_find.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "base/sha256.hpp"
#include "compile/elf.hpp"
#include "compile/text_file.hpp"

namespace dgj {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLibrary = "libnvrtc.so";
constexpr std::string_view kBuiltins = "libnvrtc-builtins.so";
constexpr int kNewestMajor = 15;  // how far the loader is asked for a soname; newer ones are found by folder

#if defined(__aarch64__)
constexpr const char* kTargetFolder = "targets/sbsa-linux/lib";
#else
constexpr const char* kTargetFolder = "targets/x86_64-linux/lib";
#endif

struct Version {
    int major = -1, minor = -1;  // -1: the name does not say
    auto operator<=>(const Version&) const = default;
};

// "libnvrtc.so.12" -> {12, -1}; "libnvrtc-builtins.so.12.8.93" -> {12, 8}; anything else -> nullopt.
std::optional<Version> version_in_name(std::string_view name, std::string_view prefix) {
    if (!name.starts_with(prefix)) return std::nullopt;
    name.remove_prefix(prefix.size());
    Version version;
    for (int* part : {&version.major, &version.minor}) {
        if (name.empty()) break;
        if (name.front() != '.') return std::nullopt;
        const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), *part);
        if (error != std::errc()) return std::nullopt;
        name.remove_prefix(static_cast<std::size_t>(end - name.data()));
    }
    return version;
}

std::string real_path(const std::string& path) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    return error ? path : real.string();
}

std::string parent(const std::string& path) { return fs::path(path).parent_path().string(); }
std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

struct LibraryFile {
    std::string path;
    Version version;
    LibraryHeaders headers;
};

// The versioned name wins over the SONAME where it says more: libnvrtc.so.12.8.93 has the SONAME
// libnvrtc.so.12.
std::optional<LibraryFile> read_library(const std::string& path, std::string_view prefix,
                                        std::string& problem) {
    LibraryFile file{.path = path, .version = {}, .headers = {}};
    if (!read_library_headers(path, file.headers, problem)) return std::nullopt;
    for (const std::string& name : {file.headers.soname, name_of(path), name_of(real_path(path))}) {
        const auto version = version_in_name(name, prefix);
        if (version) file.version = std::max(file.version, *version);
    }
    if (file.version.major < 0) {
        problem = fmt::format("neither its name nor its SONAME ('{}') is {}.<version>", file.headers.soname,
                              prefix);
        return std::nullopt;
    }
    return file;
}

// All libraries of one kind in a folder, newest first, each file once.
std::vector<LibraryFile> libraries_in(const std::string& folder, std::string_view prefix) {
    std::vector<LibraryFile> found;
    std::set<std::string> seen;
    std::error_code error;
    std::vector<std::string> names;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        if (version_in_name(it->path().filename().string(), prefix)) names.push_back(it->path().string());
    }
    std::sort(names.rbegin(), names.rend());  // the most specific name of a file comes before its links
    for (const std::string& path : names) {
        std::string problem;
        if (!seen.insert(real_path(path)).second) continue;
        if (auto file = read_library(path, prefix, problem)) found.push_back(std::move(*file));
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const LibraryFile& a, const LibraryFile& b) { return a.version > b.version; });
    return found;
}

// "" and `identity`, or why this libnvrtc can not be used.
std::string try_library(const LibraryFile& library, const NvrtcSearch& search, NvrtcIdentity& identity) {
    const int driver_major = search.driver_version / 1000;
    if (search.driver_version > 0 && library.version.major > driver_major) {
        return fmt::format("CUDA {} is newer than the driver's {}.{}", library.version.major, driver_major,
                           search.driver_version % 1000 / 10);
    }
    for (const std::string& folder : {parent(library.path), parent(real_path(library.path))}) {
        for (const LibraryFile& builtins : libraries_in(folder, kBuiltins)) {
            if (builtins.version.major != library.version.major) continue;
            if (library.version.minor >= 0 && builtins.version != library.version) continue;
            const Version version = builtins.version;
            if (version < Version{kOldestMajor, kOldestMinor}) {
                return fmt::format("version {}.{} is too old", version.major, version.minor);
            }
            std::string build = builtins.headers.build_id;
            if (build.empty()) {  // all known ones have it; without it the content itself has to tell builds
                                  // apart
                const auto content = read_text_file(builtins.path);
                if (!content) return fmt::format("{} can not be read", builtins.path);
                build = to_hex(sha256(std::as_bytes(std::span(*content))));
            }
            identity.path = library.path;
            identity.builtins = builtins.path;
            identity.major = version.major;
            identity.minor = version.minor;
            identity.fingerprint = fmt::format("nvrtc-{}.{}-{}-{}", version.major, version.minor, build,
                                               library.headers.file_size);
            return "";
        }
    }
    return fmt::format("no {}.{}.* beside it", kBuiltins, library.version.major);
}

// ---- the places -------------------------------------------------------------------------------

using Places = std::vector<std::string>;  // folders, or paths of libnvrtc itself

Places in_variable(const EnvVar& variable, std::initializer_list<const char*> folders) {
    const std::string root = env::get(variable).value_or("");
    Places places;
    if (root.empty()) return places;
    for (const char* folder : folders) places.push_back(root + "/" + folder);
    return places;
}

Places explicit_place(const NvrtcSearch&) {
    const std::string path = env::get(env::kNvrtc).value_or("");
    return path.empty() ? Places() : Places{path};
}

// Wheel layouts: CUDA 13 and later share nvidia/cu<major>/lib, CUDA 12 has nvidia/cuda_nvrtc/lib.
Places wheel_folders(const std::string& site, std::optional<int> major) {
    std::vector<std::pair<int, std::string>> found;
    std::error_code error;
    for (fs::directory_iterator it(site + "/nvidia", error), end; !error && it != end; it.increment(error)) {
        const std::string name = it->path().filename().string();
        int number = 0;
        if (name == "cuda_nvrtc") {
            number = 12;
        } else if (name.starts_with("cu")) {
            const auto [stop, bad] = std::from_chars(name.data() + 2, name.data() + name.size(), number);
            if (bad != std::errc() || stop != name.data() + name.size()) continue;
        } else {
            continue;
        }
        if (!major || *major == number) found.emplace_back(number, it->path().string() + "/lib");
    }
    std::sort(found.rbegin(), found.rend());
    Places places;
    for (auto& [number, folder] : found) places.push_back(std::move(folder));
    return places;
}

Places wheels_of_torch(const NvrtcSearch& search) {
    Places places;
    const std::optional<int> major = nvrtc_major_of_torch(search.site_packages);
    if (!major) return places;
    for (const std::string& site : search.site_packages) {
        for (std::string& folder : wheel_folders(site, major)) places.push_back(std::move(folder));
    }
    return places;
}

Places any_wheels(const NvrtcSearch& search) {
    Places places;
    for (const std::string& site : search.site_packages) {
        for (std::string& folder : wheel_folders(site, std::nullopt)) places.push_back(std::move(folder));
    }
    return places;
}

Places already_loaded(const NvrtcSearch&) {
    Places places;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* out) {
            const std::string path = info->dlpi_name;
            if (version_in_name(name_of(path), kLibrary)) static_cast<Places*>(out)->push_back(path);
            return 0;
        },
        &places);
    return places;
}

Places conda(const NvrtcSearch&) { return in_variable(env::kCondaPrefix, {"lib", kTargetFolder}); }
Places cuda_home(const NvrtcSearch&) { return in_variable(env::kCudaHome, {"lib64", "lib", kTargetFolder}); }
Places cuda_path(const NvrtcSearch&) { return in_variable(env::kCudaPath, {"lib64", "lib", kTargetFolder}); }
Places usual_toolkit(const NvrtcSearch&) {
    return {"/usr/local/cuda/lib64", "/usr/local/cuda/lib", std::string("/usr/local/cuda/") + kTargetFolder};
}

// LD_LIBRARY_PATH and the ldconfig cache are only known to the loader itself, so this last row has to open
// the library.
Places loader(const NvrtcSearch& search) {
    Places places;
    const int newest = search.driver_version > 0 ? search.driver_version / 1000 : kNewestMajor;
    for (int major = newest; major >= kOldestMajor; --major) {
        void* handle = dlopen(fmt::format("{}.{}", kLibrary, major).c_str(), RTLD_LAZY | RTLD_LOCAL);
        if (handle == nullptr) continue;
        link_map* map = nullptr;
        if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) places.push_back(map->l_name);
        dlclose(handle);
    }
    return places;
}

struct Row {
    const char* name;
    Places (*places)(const NvrtcSearch&);
    const char* when_empty;
    bool last_word;  // named by the user: a bad one is an error, never silently another library
};

// The NVRTC of the installed torch stands before one that is loaded, so that a process which imported torch
// and one which did not (the warm-up command) choose the same and make the same cache keys.
constexpr Row kRows[] = {
    {"DGJ_NVRTC", explicit_place, "not set", true},
    {"NVRTC wheel that the installed torch requires", wheels_of_torch,
     "no torch that requires one, or not installed", false},
    {"already loaded in this process", already_loaded, "none", false},
    {"pip wheel nvidia-cuda-nvrtc", any_wheels, "not installed", false},
    {"CONDA_PREFIX", conda, "not set", false},
    {"CUDA_HOME", cuda_home, "not set", false},
    {"CUDA_PATH", cuda_path, "not set", false},
    {"/usr/local/cuda", usual_toolkit, "none", false},
    {"dynamic loader (LD_LIBRARY_PATH, ldconfig)", loader, "does not know libnvrtc.so", false},
};

// Requires-Dist: name, extras and version of one requirement, as PEP 508 writes it.
std::optional<int> nvrtc_major_of_requirement(std::string_view requirement) {
    const auto in_name = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
    };
    std::string name;
    for (char c : requirement) {
        if (!in_name(c)) break;
        name += (c == '_' || c == '.') ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    constexpr std::string_view kWheel = "nvidia-cuda-nvrtc";
    const std::string_view before_marker = requirement.substr(0, requirement.find(';'));
    const bool meta_package = name == "cuda-toolkit" && before_marker.find("nvrtc") != std::string_view::npos;
    if (name != kWheel && !name.starts_with(std::string(kWheel) + "-cu") && !meta_package)
        return std::nullopt;
    int major = 0;
    const std::size_t digits = name.starts_with(std::string(kWheel) + "-cu") ? kWheel.size() + 3
                                                                             : std::string::npos;
    const std::size_t equals = before_marker.find("==");
    std::string_view number;
    if (digits != std::string::npos) number = std::string_view(name).substr(digits);
    else if (equals != std::string_view::npos) number = before_marker.substr(equals + 2);
    else return std::nullopt;
    while (!number.empty() && number.front() == ' ') number.remove_prefix(1);
    if (std::from_chars(number.data(), number.data() + number.size(), major).ec != std::errc())
        return std::nullopt;
    return major;
}

}  // namespace

std::optional<int> nvrtc_major_of_torch(const std::vector<std::string>& site_packages) {
    for (const std::string& site : site_packages) {
        std::vector<std::string> metadata;
        std::error_code error;
        for (fs::directory_iterator it(site, error), end; !error && it != end; it.increment(error)) {
            const std::string name = it->path().filename().string();
            if (name.starts_with("torch-") && name.ends_with(".dist-info"))
                metadata.push_back(it->path().string());
        }
        if (metadata.empty()) continue;
        const std::string newest = *std::max_element(metadata.begin(), metadata.end());
        const std::string text = read_text_file(newest + "/METADATA").value_or("");
        std::string_view rest = text;
        while (!rest.empty()) {
            const std::string_view line = rest.substr(0, rest.find('\n'));
            rest.remove_prefix(std::min(rest.size(), line.size() + 1));
            if (line.empty() || line == "\r") break;  // the headers end; a description follows
            constexpr std::string_view kField = "Requires-Dist: ";
            if (!line.starts_with(kField)) continue;
            if (auto major = nvrtc_major_of_requirement(line.substr(kField.size()))) return major;
        }
        return std::nullopt;  // the first torch on the path is the one that Python imports
    }
    return std::nullopt;
}

NvrtcIdentity find_nvrtc(const NvrtcSearch& search) {
    std::string tried;
    for (const Row& row : kRows) {
        const Places places = row.places(search);
        tried += fmt::format("\n  {}: {}", row.name, places.empty() ? row.when_empty : "");
        for (const std::string& written : places) {
            std::error_code error;
            const std::string place = fs::absolute(written, error)
                                          .string();  // the process may change its folder later
            std::vector<LibraryFile> libraries;
            std::string problem;
            if (fs::is_directory(place, error)) {
                libraries = libraries_in(place, kLibrary);
                problem = fmt::format("no {}.* in it", kLibrary);
            } else if (auto library = read_library(place, kLibrary, problem)) {
                libraries.push_back(std::move(*library));
            }
            if (libraries.empty()) tried += fmt::format("\n    {}: {}", place, problem);
            for (const LibraryFile& library : libraries) {
                NvrtcIdentity identity;
                problem = try_library(library, search, identity);
                if (problem.empty()) {
                    identity.found_by = row.name;
                    return identity;
                }
                tried += fmt::format("\n    {}: {}", library.path, problem);
            }
        }
        if (row.last_word && !places.empty()) {
            fail(ErrorKind::kCompile,
                 "DGJ_NVRTC does not name a usable NVRTC; a libnvrtc.so of CUDA {}.{} or newer with its "
                 "libnvrtc-builtins.so beside it is needed. Correct DGJ_NVRTC or unset it.{}",
                 kOldestMajor, kOldestMinor, tried);
        }
    }
    const std::string driver = search.driver_version == 0 ? "there is no CUDA driver"
                                                          : fmt::format("the driver supports CUDA {}.{}",
                                                                        search.driver_version / 1000,
                                                                        search.driver_version % 1000 / 10);
    fail(ErrorKind::kCompile,
         "NVRTC, the compiler of CUDA kernels, was not found. Version {}.{} or newer is needed ({}). Install "
         "it with "
         "`pip install nvidia-cuda-nvrtc` (CUDA 13) or `pip install nvidia-cuda-nvrtc-cu12`, or set "
         "DGJ_NVRTC to the "
         "path of libnvrtc.so. Tried, in this order:{}",
         kOldestMajor, kOldestMinor, driver, tried);
}

}  // namespace dgj
