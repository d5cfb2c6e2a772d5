// The few facts that are needed from ELF files: who an NVRTC library is, and whether an image is a whole CUDA
// kernel. Every offset is checked: neither a library file nor an image is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dgj {

struct LibraryHeaders {
    std::string soname;
    std::string build_id;  // hex; empty when the file has none
    std::uint64_t file_size = 0;
};

// Reads a few KiB of the file. `problem` says why nothing could be read: no file, no ELF, another machine's
// ELF.
bool read_library_headers(const std::string& path, LibraryHeaders& headers, std::string& problem);

// "" when `image` is a CUDA ELF whose tables and sections all lie inside it and whose symbol table defines
// `entry`; otherwise what is wrong with it.
std::string image_problem(std::span<const std::byte> image, const std::string& entry);

}  // namespace dgj
