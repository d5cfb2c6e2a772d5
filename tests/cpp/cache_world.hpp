// The cache with a compiler that only counts, and with a file system that can fail.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/version.hpp"
#include "cache/kernel_cache.hpp"
#include "cache/seams.hpp"
#include "driver_common.hpp"
#include "fake_cubin.hpp"
#include "fault_fs.hpp"

namespace driver {

inline std::vector<std::byte> right_image(const dgj::KernelSource& source) {
    return image_with_entry(source.entry, "payload of " + source.text);
}

inline dgj::CompileResult fake_compile(const Arguments& arguments, const dgj::KernelSource& source) {
    const std::string marker = arguments.get("marker", "");
    if (!marker.empty()) {  // one line per compile, over all processes
        const int fd = ::open(marker.c_str(), O_WRONLY | O_APPEND | O_CREAT, 0666);
        const std::string line = source.text + "\n";
        if (fd < 0 || ::write(fd, line.data(), line.size()) < 0) std::abort();
        ::close(fd);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(arguments.get("sleep", "0"))));
    const std::string mode = arguments.get("compiler", "good");
    if (mode == "error") dgj::fail(dgj::ErrorKind::kCompile, "fake compiler: line 1: no such thing");
    dgj::CompileResult result;
    result.log = "ptxas info    : Used 7 registers\n\"quoted\" \x01 \xff back\\slash";
    result.milliseconds = 1.5;
    result.cubin = mode == "wrong-symbol" ? image_with_entry("another", "") : right_image(source);
    if (mode == "empty") result.cubin.clear();
    if (mode == "garbage") result.cubin.assign(500, std::byte{0x5a});
    if (mode == "truncated") result.cubin.resize(result.cubin.size() - 1);
    return result;
}

inline dgj::KernelSource source_of(const Arguments& arguments, const std::string& suffix = "") {
    dgj::KernelSource source;
    source.text = arguments.get("text", "kernel text") + suffix;
    source.text.append(static_cast<std::size_t>(std::stoi(arguments.get("padding", "0"))), '.');
    source.entry = arguments.get("entry", "kernel");
    source.arch = arguments.get("arch", "sm_90a");
    for (const std::string& header : arguments.all("header")) {
        const std::size_t equals = header.find('=');
        source.headers.push_back({header.substr(0, equals), header.substr(equals + 1)});
    }
    return source;
}

// `arguments` and `fs` live as long as the process.
inline void set_world(const Arguments& arguments, FaultFs& fs) {
    for (const std::string& rule : arguments.all("fault")) fs.add(rule);
    if (const int uid = std::stoi(arguments.get("euid", "-1")); uid >= 0)
        fs.set_euid(static_cast<uid_t>(uid));
    dgj::CacheSeams seams;
    seams.fs = &fs;
    seams.package_version = arguments.get("package", dgj::kPackageVersion);
    seams.fingerprint = [&] {
        const std::string value = arguments.get("fingerprint", "nvrtc-13.0-abc-1");
        if (value == "none") dgj::fail(dgj::ErrorKind::kCompile, "fake: there is no NVRTC");
        return value;
    };
    seams.options = [&](const std::string& arch) {
        std::vector<std::string> options{"--gpu-architecture=" + arch};
        for (const std::string& option : arguments.all("option")) options.push_back(option);
        return options;
    };
    seams.compile = [&](const dgj::KernelSource& source, const std::string&) {
        return fake_compile(arguments, source);
    };
    if (const std::string wait = arguments.get("lock-wait", ""); !wait.empty())
        seams.lock_wait = std::chrono::milliseconds(std::stoi(wait));
    dgj::set_cache_seams(std::move(seams));
}

}  // namespace driver
