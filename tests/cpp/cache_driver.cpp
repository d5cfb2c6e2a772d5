// Drives csrc/cache with a compiler that is a counter, and with a file system that can fail.
//   key | get | threads N | keys N | find | root | hold | hold-fork | fork | drop | forget
//   parse FILE | sha FILE

#include <elf.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/version.hpp"
#include "cache/entry.hpp"
#include "cache/kernel_cache.hpp"
#include "cache/lock.hpp"
#include "cache/roots.hpp"
#include "cache/seams.hpp"
#include "compile/text_file.hpp"
#include "driver_common.hpp"
#include "fault_fs.hpp"

namespace {

using driver::Arguments;

// The smallest image that passes for a kernel: ELF header, symbol table, string table, three section headers.
std::vector<std::byte> fake_cubin(const std::string& entry, const std::string& payload) {
    const std::string names = '\0' + entry + '\0' + payload;
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_machine = 190;
    header.e_shnum = 3;
    header.e_shentsize = sizeof(Elf64_Shdr);
    Elf64_Sym symbols[2]{};
    symbols[1].st_name = 1;
    symbols[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbols[1].st_shndx = 1;
    Elf64_Shdr sections[3]{};
    sections[1].sh_type = SHT_SYMTAB;
    sections[1].sh_link = 2;
    sections[1].sh_offset = sizeof header;
    sections[1].sh_size = sizeof symbols;
    sections[1].sh_entsize = sizeof(Elf64_Sym);
    sections[2].sh_type = SHT_STRTAB;
    sections[2].sh_offset = sizeof header + sizeof symbols;
    sections[2].sh_size = names.size();
    header.e_shoff = sizeof header + sizeof symbols + names.size();
    std::string image(reinterpret_cast<const char*>(&header), sizeof header);
    image.append(reinterpret_cast<const char*>(symbols), sizeof symbols);
    image += names;
    image.append(reinterpret_cast<const char*>(sections), sizeof sections);
    const auto bytes = std::as_bytes(std::span(image));
    return {bytes.begin(), bytes.end()};
}

dgj::CompileResult fake_compile(const Arguments& arguments, const dgj::KernelSource& source) {
    const std::string marker = arguments.get("marker", "");
    if (!marker.empty()) {  // one line per compile, over all processes
        const int fd = open(marker.c_str(), O_WRONLY | O_APPEND | O_CREAT, 0666);
        const std::string line = source.text + "\n";
        if (fd < 0 || write(fd, line.data(), line.size()) < 0) std::abort();
        close(fd);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(arguments.get("sleep", "0"))));
    const std::string mode = arguments.get("compiler", "good");
    if (mode == "error") dgj::fail(dgj::ErrorKind::kCompile, "fake compiler: line 1: no such thing");
    dgj::CompileResult result;
    result.log = "ptxas info    : Used 7 registers\n\"quoted\" \x01 \xff back\\slash";
    result.milliseconds = 1.5;
    result.cubin = fake_cubin(mode == "wrong-symbol" ? "another" : source.entry, "payload of " + source.text);
    if (mode == "empty") result.cubin.clear();
    if (mode == "garbage") result.cubin.assign(500, std::byte{0x5a});
    if (mode == "truncated") result.cubin.resize(result.cubin.size() - 1);
    return result;
}

dgj::KernelSource source_of(const Arguments& arguments, const std::string& suffix = "") {
    dgj::KernelSource source;
    source.text = arguments.get("text", "kernel text") + suffix;
    source.entry = arguments.get("entry", "kernel");
    source.arch = arguments.get("arch", "sm_90a");
    for (const std::string& header : arguments.all("header")) {
        const std::size_t equals = header.find('=');
        source.headers.push_back({header.substr(0, equals), header.substr(equals + 1)});
    }
    return source;
}

void print_kernel(const std::shared_ptr<const dgj::CachedKernel>& kernel, const dgj::KernelSource& source) {
    constexpr const char* kOrigins[] = {"memory", "disk", "compiled"};
    dgj::JsonObject out;
    if (kernel == nullptr) {
        out.add("origin", "none");
    } else {
        out.add("origin", kOrigins[static_cast<int>(kernel->origin)]);
        out.add("key", dgj::to_hex(kernel->key));
        out.add("ms", kernel->milliseconds);
        out.add("meta", kernel->meta);
        out.add("right_bytes",
                std::int64_t{kernel->cubin == fake_cubin(source.entry, "payload of " + source.text)});
    }
    out.add("compiles", static_cast<std::int64_t>(dgj::compile_count()));
    driver::print(out);
}

void get(const Arguments& arguments, const std::string& suffix = "") {
    const dgj::KernelSource source = source_of(arguments, suffix);
    try {
        print_kernel(dgj::get_or_compile(source, "plan of " + source.text), source);
    } catch (const dgj::Error& error) {
        driver::print_error(error);
    }
}

void threads(const Arguments& arguments, int count) {
    std::vector<std::thread> all;
    for (int i = 0; i < count; ++i) all.emplace_back([&] { get(arguments); });
    for (std::thread& one : all) one.join();
}

// Holds the key's lock until killed; "hold-fork" leaves a child behind that shares every descriptor.
void hold(const Arguments& arguments, bool with_child) {
    const dgj::CacheKey key = dgj::cache_key(source_of(arguments));
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
        for (int i = 0; i < std::stoi(words.at(1)); ++i) get(arguments, " " + std::to_string(i));
    } else if (command == "find") {
        const dgj::KernelSource source = source_of(arguments);
        print_kernel(dgj::find_cached(source), source);
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
    static driver::FaultFs fs;
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
    seams.lock_wait = std::chrono::milliseconds(std::stoi(arguments.get("lock-wait", "6000")));
    dgj::set_cache_seams(std::move(seams));
    try {
        return run(arguments);
    } catch (const dgj::Error& error) {
        driver::print_error(error);
        return 0;
    }
}
