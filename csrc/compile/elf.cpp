#include "compile/elf.hpp"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "base/sha256.hpp"

namespace dgj {
namespace {

constexpr std::uint64_t kMaxTable = 16 << 20;  // no header, note or string table that we read is larger
constexpr Elf64_Half kMachineCuda = 190;       // EM_CUDA

#if defined(__x86_64__)
constexpr Elf64_Half kMachineHost = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kMachineHost = EM_AARCH64;
#endif

// Reads from memory or from a file by the same calls; false for anything outside.
class Source {
public:
    explicit Source(std::span<const std::byte> memory) : memory_(memory), size_(memory.size()) {}
    Source(int fd, std::uint64_t size) : fd_(fd), size_(size) {}

    std::uint64_t size() const { return size_; }
    bool inside(std::uint64_t offset, std::uint64_t length) const {
        return length <= size_ && offset <= size_ - length;
    }

    bool read(std::uint64_t offset, void* out, std::uint64_t length) const {
        if (!inside(offset, length)) return false;
        if (fd_ < 0) {
            std::memcpy(out, memory_.data() + offset, length);
            return true;
        }
        std::uint64_t done = 0;
        while (done < length) {
            const ssize_t n = pread(fd_, static_cast<char*>(out) + done, length - done,
                                    static_cast<off_t>(offset + done));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return false;
            done += static_cast<std::uint64_t>(n);
        }
        return true;
    }

    template <class T>
    std::optional<std::vector<T>> table(std::uint64_t offset, std::uint64_t count,
                                        std::uint64_t entry_size) const {
        if (count == 0) return std::vector<T>();
        if (entry_size != sizeof(T) || count > kMaxTable / sizeof(T)) return std::nullopt;
        std::vector<T> rows(count);
        if (!read(offset, rows.data(), count * sizeof(T))) return std::nullopt;
        return rows;
    }

private:
    std::span<const std::byte> memory_;
    int fd_ = -1;
    std::uint64_t size_ = 0;
};

std::optional<Elf64_Ehdr> elf_header(const Source& source) {
    Elf64_Ehdr header;
    if (!source.read(0, &header, sizeof header)) return std::nullopt;
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return std::nullopt;
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) return std::nullopt;
    return header;
}

std::string text_at(const std::vector<char>& strings, std::uint64_t offset) {
    if (offset >= strings.size()) return "";
    const auto begin = strings.begin() + static_cast<std::ptrdiff_t>(offset);
    return std::string(begin, std::find(begin, strings.end(), '\0'));
}

std::string build_id_in(const Source& source, const Elf64_Phdr& segment) {
    const auto notes = source.table<unsigned char>(segment.p_offset, segment.p_filesz, 1);
    if (!notes) return "";
    std::size_t at = 0;
    const auto padded = [](std::size_t n) { return (n + 3) / 4 * 4; };
    while (notes->size() - at >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr note;
        std::memcpy(&note, notes->data() + at, sizeof note);
        at += sizeof note;
        const std::size_t name = padded(note.n_namesz), body = padded(note.n_descsz);
        if (name > notes->size() - at || body > notes->size() - at - name) break;
        const unsigned char* start = notes->data() + at;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(start, "GNU", 4) == 0) {
            return to_hex(std::span(start + name, note.n_descsz));
        }
        at += name + body;
    }
    return "";
}

std::string soname_in(const Source& source, const std::vector<Elf64_Phdr>& segments,
                      const Elf64_Phdr& dynamic) {
    const auto entries = source.table<Elf64_Dyn>(dynamic.p_offset, dynamic.p_filesz / sizeof(Elf64_Dyn),
                                                 sizeof(Elf64_Dyn));
    if (!entries) return "";
    std::uint64_t strings = 0, strings_size = 0, name = 0;
    for (const Elf64_Dyn& entry : *entries) {
        if (entry.d_tag == DT_NULL) break;
        if (entry.d_tag == DT_STRTAB) strings = entry.d_un.d_ptr;
        if (entry.d_tag == DT_STRSZ) strings_size = entry.d_un.d_val;
        if (entry.d_tag == DT_SONAME) name = entry.d_un.d_val;
    }
    if (name == 0) return "";
    for (const Elf64_Phdr& load : segments) {  // DT_STRTAB is an address: find the file offset behind it
        if (load.p_type != PT_LOAD || strings < load.p_vaddr || strings - load.p_vaddr >= load.p_filesz)
            continue;
        const auto text = source.table<char>(strings - load.p_vaddr + load.p_offset, strings_size, 1);
        return text ? text_at(*text, name) : "";
    }
    return "";
}

struct FileCloser {
    int fd;
    ~FileCloser() { close(fd); }
};

}  // namespace

bool read_library_headers(const std::string& path, LibraryHeaders& headers, std::string& problem) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        problem = std::strerror(errno);
        return false;
    }
    const FileCloser closer{fd};
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        problem = "not a regular file";
        return false;
    }
    const Source source(fd, static_cast<std::uint64_t>(info.st_size));
    const auto header = elf_header(source);
    if (!header || header->e_machine != kMachineHost) {
        problem = header ? "built for another CPU" : "not a 64-bit ELF library";
        return false;
    }
    const auto segments = source.table<Elf64_Phdr>(header->e_phoff, header->e_phnum, header->e_phentsize);
    if (!segments) {
        problem = "damaged ELF headers";
        return false;
    }
    headers = LibraryHeaders{.soname = "", .build_id = "", .file_size = source.size()};
    for (const Elf64_Phdr& segment : *segments) {
        if (segment.p_type == PT_DYNAMIC) headers.soname = soname_in(source, *segments, segment);
        if (segment.p_type == PT_NOTE && headers.build_id.empty())
            headers.build_id = build_id_in(source, segment);
    }
    return true;
}

std::string image_problem(std::span<const std::byte> image, const std::string& entry) {
    if (image.empty()) return "it is empty";
    const Source source(image);
    const auto header = elf_header(source);
    if (!header) return "it is not a 64-bit ELF file";
    if (header->e_machine != kMachineCuda) {
        return fmt::format("its ELF machine is {}, not {} (CUDA)", header->e_machine, kMachineCuda);
    }
    const auto segments = source.table<Elf64_Phdr>(header->e_phoff, header->e_phnum, header->e_phentsize);
    const auto sections = source.table<Elf64_Shdr>(header->e_shoff, header->e_shnum, header->e_shentsize);
    if (!segments || !sections) return "its header tables lie outside of it (truncated?)";
    for (const Elf64_Phdr& segment : *segments) {
        if (!source.inside(segment.p_offset, segment.p_filesz))
            return "a segment lies outside of it (truncated?)";
    }
    for (const Elf64_Shdr& section : *sections) {
        if (section.sh_type != SHT_NOBITS && !source.inside(section.sh_offset, section.sh_size)) {
            return "a section lies outside of it (truncated?)";
        }
    }
    for (const Elf64_Shdr& section : *sections) {
        if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections->size()) continue;
        const Elf64_Shdr& names = (*sections)[section.sh_link];
        const auto symbols = source.table<Elf64_Sym>(section.sh_offset, section.sh_size / sizeof(Elf64_Sym),
                                                     section.sh_entsize);
        const auto strings = source.table<char>(names.sh_offset, names.sh_size, 1);
        if (!symbols || !strings || names.sh_type != SHT_STRTAB) return "its symbol table is damaged";
        for (const Elf64_Sym& symbol : *symbols) {
            const bool function = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF;
            if (function && text_at(*strings, symbol.st_name) == entry) return "";
        }
    }
    return fmt::format("it does not define the kernel {}", entry);
}

}  // namespace dgj
