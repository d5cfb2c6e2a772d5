#include "cache/key.hpp"

#include <algorithm>

namespace dgj {
namespace {

void add_number(Sha256& hash, std::uint64_t number) {
    std::array<std::byte, 8> bytes;
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(number >> (8 * i));
    hash.update(bytes);
}

void add_field(Sha256& hash, std::string_view text) {
    add_number(hash, text.size());
    hash.update(text);
}

}  // namespace

CacheKey make_key(const KernelSource& source, const std::vector<std::string>& options,
                  const std::string& fingerprint, const std::string& package_version) {
    Sha256 common;
    add_field(common, "deep_gemm_jit kernel");
    add_field(common, kCacheSchema);
    add_field(common, package_version);
    add_field(common, source.text);
    add_field(common, source.entry);
    add_number(common, source.headers.size());
    for (const NamedText& header : source.headers) {
        add_field(common, header.name);
        add_field(common, header.text);
    }
    add_number(common, options.size());
    for (const std::string& option : options) add_field(common, option);
    add_field(common, source.arch);

    Sha256 with_compiler = common;
    add_field(with_compiler, fingerprint);
    CacheKey key = common.finish();
    const Digest second = with_compiler.finish();
    std::copy_n(second.begin(), key.size() - kSameKernelBytes, key.begin() + kSameKernelBytes);
    return key;
}

}  // namespace dgj
