#include "cache/files.hpp"

#include <algorithm>
#include <cctype>

namespace dgj {
namespace {

bool is_hex_pair(const std::string& name) {
    return name.size() == 2 && std::all_of(name.begin(), name.end(), [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

bool is_version(const std::string& name) {
    return name.size() >= 2 && name[0] == 'v' && std::all_of(name.begin() + 1, name.end(), [](char c) {
               return std::isdigit(static_cast<unsigned char>(c)) != 0;
           });
}

bool same_file(const struct stat& a, const struct stat& b) {
    return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

bool remove_path(Fs& fs, const std::string& path) { return fs.unlink(path) == 0 || fs.rmdir(path) == 0; }

}  // namespace

std::vector<std::string> names_in(Fs& fs, const std::string& folder) {
    struct stat info{};
    if (fs.lstat(folder, info) != 0 || !S_ISDIR(info.st_mode)) return {};
    return fs.list(folder);
}

std::vector<std::string> version_folders(Fs& fs, const std::string& root) {
    std::vector<std::string> folders;
    for (const std::string& name : names_in(fs, root)) {
        if (is_version(name)) folders.push_back(root + "/" + name);
    }
    return folders;
}

std::vector<EntryFile> list_entries(Fs& fs, const std::string& root) {
    std::vector<EntryFile> files;
    for (const std::string& version : version_folders(fs, root)) {
        for (const std::string& pair : names_in(fs, version)) {
            if (!is_hex_pair(pair)) continue;
            const std::string folder = version + "/" + pair;
            for (const std::string& name : names_in(fs, folder)) {
                EntryFile file{.path = folder + "/" + name, .seen = {}};
                if (fs.lstat(file.path, file.seen) == 0) files.push_back(std::move(file));
            }
        }
    }
    return files;
}

bool is_entry(const EntryFile& file) {
    return S_ISREG(file.seen.st_mode) && file.path.ends_with(kEntrySuffix);
}

bool remove_unchanged(Fs& fs, const EntryFile& file) {
    struct stat now{};
    if (fs.lstat(file.path, now) != 0 || !same_file(now, file.seen)) return false;
    if (now.st_size != file.seen.st_size || changed_ns(now) != changed_ns(file.seen)) return false;
    return remove_path(fs, file.path);
}

bool remove_same_file(Fs& fs, const EntryFile& file) {
    struct stat now{};
    return fs.lstat(file.path, now) == 0 && same_file(now, file.seen) && remove_path(fs, file.path);
}

}  // namespace dgj
