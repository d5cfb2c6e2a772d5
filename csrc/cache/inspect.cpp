#include "cache/inspect.hpp"

#include <filesystem>
#include <string_view>

#include "base/env.hpp"
#include "cache/disk.hpp"
#include "cache/evict.hpp"

namespace dgj {
namespace {

// False when the text is not 64 small hex digits.
bool parse_key(std::string_view hex, CacheKey& key) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    if (hex.size() != 2 * key.size()) return false;
    for (std::size_t i = 0; i < key.size(); ++i) {
        const std::size_t high = kDigits.find(hex[2 * i]), low = kDigits.find(hex[2 * i + 1]);
        if (high == kDigits.npos || low == kDigits.npos) return false;
        key[i] = static_cast<unsigned char>(high << 4 | low);
    }
    return true;
}

}  // namespace

CacheState inspect_roots() {
    return {.roots = open_roots(real_fs()),
            .max_size = parse_size(env::get(env::kCacheMaxSize).value_or("")).value_or(kDefaultMaxSize)};
}

EntryReport inspect_entry(const EntryFile& file, bool writable) {
    EntryReport report;
    const std::filesystem::path path(file.path);
    CacheKey key{};
    if (path.extension() != kEntrySuffix || !parse_key(path.stem().string(), key)) {
        report.problem = "its name is not <key>.dgk";
        return report;
    }
    report.key = path.stem().string();
    if (path.parent_path().filename() != report.key.substr(0, 2)) {
        report.problem = "it lies in the folder of other keys";
        return report;
    }
    FileResult read = read_entry_file(real_fs(), file.path, key, {.writable = writable});
    report.problem = read.state == FileResult::State::kAbsent ? "it is gone" : read.problem;
    report.meta = std::move(read.entry.meta);
    report.image = std::move(read.entry.image);
    return report;
}

std::vector<EntryFile> list_unfinished(const std::string& root) {
    std::vector<EntryFile> files;
    Fs& fs = real_fs();
    for (const std::string& version : version_folders(fs, root)) {
        for (const std::string& name : names_in(fs, version + "/tmp")) {
            EntryFile file{.path = version + "/tmp/" + name, .seen = {}};
            if (fs.lstat(file.path, file.seen) == 0) files.push_back(std::move(file));
        }
    }
    return files;
}

}  // namespace dgj
