// An image that passes for a compiled kernel, so that tests of the cache's users need no compiler.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace driver {

// One CUDA ELF: header | two symbols (none, entry) | their names, then `payload` | three section headers.
inline std::vector<std::byte> image_with_entry(const std::string& entry, const std::string& payload) {
    constexpr Elf64_Half kMachineCuda = 190;
    struct Front {
        Elf64_Ehdr header{};
        Elf64_Sym symbols[2]{};
    } front;
    Elf64_Shdr sections[3]{};
    const std::string names = '\0' + entry + '\0' + payload;

    std::memcpy(front.header.e_ident, ELFMAG, SELFMAG);
    front.header.e_ident[EI_CLASS] = ELFCLASS64;
    front.header.e_ident[EI_DATA] = ELFDATA2LSB;
    front.header.e_machine = kMachineCuda;
    front.header.e_shoff = sizeof front + names.size();
    front.header.e_shentsize = sizeof *sections;
    front.header.e_shnum = 3;
    front.symbols[1].st_name = 1;
    front.symbols[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    front.symbols[1].st_shndx = 1;
    sections[1].sh_type = SHT_SYMTAB;
    sections[1].sh_offset = offsetof(Front, symbols);
    sections[1].sh_size = sizeof front.symbols;
    sections[1].sh_entsize = sizeof *front.symbols;
    sections[1].sh_link = 2;
    sections[2].sh_type = SHT_STRTAB;
    sections[2].sh_offset = sizeof front;
    sections[2].sh_size = names.size();

    std::vector<std::byte> image(sizeof front + names.size() + sizeof sections);
    std::memcpy(image.data(), &front, sizeof front);
    std::memcpy(image.data() + sizeof front, names.data(), names.size());
    std::memcpy(image.data() + sizeof front + names.size(), sections, sizeof sections);
    return image;
}

}  // namespace driver
