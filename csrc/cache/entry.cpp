#include "cache/entry.hpp"

#include <algorithm>
#include <cstring>

namespace dgj {
namespace {

constexpr char kMagic[] = {'D', 'G', 'J', 'C', 'U', 'B', 'I', 'N'};
constexpr std::uint32_t kFormat = 1;
constexpr std::size_t kKeyAt = sizeof kMagic + 4 + 4 + 8;
constexpr std::size_t kMetaAt = kKeyAt + sizeof(CacheKey);
constexpr std::size_t kChecksum = sizeof(Digest);

void put_number(std::vector<std::byte>& out, std::uint64_t number, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(number >> (8 * i)));
}

std::uint64_t get_number(std::span<const std::byte> file, std::size_t at, int bytes) {
    std::uint64_t number = 0;
    for (int i = 0; i < bytes; ++i) {
        number |= std::to_integer<std::uint64_t>(file[at + static_cast<std::size_t>(i)]) << (8 * i);
    }
    return number;
}

void put_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

std::vector<std::byte> serialize_entry(const CacheKey& key, const std::string& meta,
                                       std::span<const std::byte> image) {
    std::vector<std::byte> out;
    out.reserve(kMetaAt + meta.size() + image.size() + kChecksum);
    put_bytes(out, std::as_bytes(std::span(kMagic)));
    put_number(out, kFormat, 4);
    put_number(out, meta.size(), 4);
    put_number(out, image.size(), 8);
    put_bytes(out, std::as_bytes(std::span(key)));
    put_bytes(out, std::as_bytes(std::span(meta)));
    put_bytes(out, image);
    const Digest checksum = sha256(out);
    put_bytes(out, std::as_bytes(std::span(checksum)));
    return out;
}

std::string parse_entry(std::span<const std::byte> file, const CacheKey& key, bool same_kernel_only,
                        Entry& entry) {
    if (file.size() < kMetaAt + kChecksum) return "it is too short";
    if (std::memcmp(file.data(), kMagic, sizeof kMagic) != 0) return "it does not begin as an entry";
    if (get_number(file, sizeof kMagic, 4) != kFormat) return "its format version is unknown";
    const std::uint64_t meta_size = get_number(file, sizeof kMagic + 4, 4);
    const std::uint64_t image_size = get_number(file, sizeof kMagic + 8, 8);
    const std::uint64_t body = file.size() - kMetaAt - kChecksum;
    if (meta_size > body || image_size != body - meta_size) return "its lengths do not match the file";
    const Digest checksum = sha256(file.first(file.size() - kChecksum));
    if (std::memcmp(file.data() + file.size() - kChecksum, checksum.data(), kChecksum) != 0) {
        return "its checksum is wrong";
    }
    std::memcpy(entry.key.data(), file.data() + kKeyAt, entry.key.size());
    const std::size_t compared = same_kernel_only ? kSameKernelBytes : key.size();
    if (!std::equal(key.begin(), key.begin() + static_cast<std::ptrdiff_t>(compared), entry.key.begin())) {
        return "it belongs to another key";
    }
    const std::span<const std::byte> meta = file.subspan(kMetaAt, meta_size);
    const std::span<const std::byte> image = file.subspan(kMetaAt + meta_size, image_size);
    entry.meta.assign(reinterpret_cast<const char*>(meta.data()), meta.size());
    entry.image.assign(image.begin(), image.end());
    return "";
}

}  // namespace dgj
