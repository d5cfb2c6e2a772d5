// Drives csrc/compile without Python and without torch.
//   [--site DIR]... [--driver 13000] [--preload LIB] COMMAND
//   find | options ARCH | compile FILE ENTRY ARCH OUT | fork FILE ENTRY ARCH
//   image FILE ENTRY | truncate FILE ENTRY | log FILE | torch-major

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/sha256.hpp"
#include "compile/elf.hpp"
#include "compile/nvrtc.hpp"
#include "compile/nvrtc_find.hpp"
#include "compile/text_file.hpp"
#include "driver_common.hpp"

namespace {

int g_driver_version = 0;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

dgj::KernelSource source_of(const std::vector<std::string>& words, const driver::Arguments& arguments) {
    dgj::KernelSource source;
    source.text = dgj::read_text_file(words.at(1)).value();
    source.entry = words.at(2);
    source.arch = words.at(3);
    for (const std::string& header : arguments.all("header")) {
        const std::size_t equals = header.find('=');
        source.headers.push_back({header.substr(0, equals), header.substr(equals + 1)});
    }
    return source;
}

bool is_loaded(const char* part) {
    const std::string maps = dgj::read_text_file("/proc/self/maps").value_or("");
    return maps.find(part) != std::string::npos;
}

void compile(const dgj::KernelSource& source, const std::string& out_path, const std::string& failed_folder) {
    const dgj::CompileResult result = dgj::nvrtc_compile(source, failed_folder);
    const dgj::CompileReport report = dgj::parse_compile_log(result.log);
    if (!out_path.empty()) {
        std::FILE* file = std::fopen(out_path.c_str(), "wb");
        std::fwrite(result.cubin.data(), 1, result.cubin.size(), file);
        std::fclose(file);
    }
    dgj::JsonObject out;
    out.add("bytes", static_cast<std::int64_t>(result.cubin.size()));
    out.add("digest", dgj::to_hex(dgj::sha256(result.cubin)));
    out.add("log", result.log);
    out.add("ms", result.milliseconds);
    out.add("registers", std::int64_t{report.registers});
    out.add("path", dgj::nvrtc_identity().path);
    driver::print(out);
}

int run(const driver::Arguments& arguments) {
    const std::vector<std::string>& words = arguments.words;
    const std::string command = words.at(0);
    if (command == "find") {
        const dgj::NvrtcIdentity& who = dgj::nvrtc_identity();
        dgj::JsonObject out;
        out.add("path", who.path);
        out.add("builtins", who.builtins);
        out.add("found_by", who.found_by);
        out.add("major", std::int64_t{who.major});
        out.add("minor", std::int64_t{who.minor});
        out.add("fingerprint", who.fingerprint);
        out.add("opened", std::int64_t{is_loaded("libnvrtc")});
        driver::print(out);
    } else if (command == "options") {
        dgj::JsonObject out;
        out.add("options", dgj::nvrtc_options(words.at(1)));
        driver::print(out);
    } else if (command == "compile") {
        compile(source_of(words, arguments), words.at(4), arguments.get("failed", ""));
    } else if (command == "fork") {  // parent compiles, then its child does
        compile(source_of(words, arguments), "", "");
        if (const pid_t child = fork(); child == 0) {
            compile(source_of(words, arguments), "", "");
            std::_Exit(0);
        } else {
            int status = 0;
            waitpid(child, &status, 0);
            return status == 0 ? 0 : 1;
        }
    } else if (command == "image") {
        dgj::JsonObject out;
        out.add("problem",
                dgj::image_problem(bytes_of(dgj::read_text_file(words.at(1)).value()), words.at(2)));
        driver::print(out);
    } else if (command == "truncate") {  // how many proper prefixes of the image pass
        const std::string image = dgj::read_text_file(words.at(1)).value();
        std::int64_t accepted = 0;
        for (std::size_t n = 0; n < image.size(); ++n) {
            accepted += dgj::image_problem(bytes_of(image).first(n), words.at(2)).empty();
        }
        dgj::JsonObject out;
        out.add("accepted", accepted);
        driver::print(out);
    } else if (command == "log") {
        const dgj::CompileReport report = dgj::parse_compile_log(dgj::read_text_file(words.at(1)).value());
        dgj::JsonObject out;
        out.add("registers", std::int64_t{report.registers});
        out.add("spill_stores", std::int64_t{report.spill_stores});
        out.add("spill_loads", std::int64_t{report.spill_loads});
        out.add("stack_bytes", std::int64_t{report.stack_bytes});
        out.add("advisories", report.advisories);
        driver::print(out);
    } else if (command == "torch-major") {
        dgj::JsonObject out;
        out.add("major", std::int64_t{dgj::nvrtc_major_of_torch(arguments.all("site")).value_or(0)});
        driver::print(out);
    } else {
        return 2;
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const driver::Arguments arguments(argc, argv);
    driver::log_to_stderr();
    dgj::set_search_paths(arguments.all("site"));
    g_driver_version = std::atoi(arguments.get("driver", "0").c_str());
    dgj::set_driver_version_source([] { return g_driver_version; });
    for (const std::string& library : arguments.all("preload")) {
        if (dlopen(library.c_str(), RTLD_NOW) == nullptr) return 3;
    }
    try {
        return run(arguments);
    } catch (const dgj::Error& error) {
        driver::print_error(error);
        return 0;
    }
}
