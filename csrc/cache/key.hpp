// The cache key: SHA-256 over length-prefixed fields, so that no two different inputs give the same bytes to
// hash.
//
//   field(x)  = u64 little-endian length of x, then x
//   list(xs)  = u64 number of items, then field(x) of each
//   common    = field("deep_gemm_jit kernel") field(schema) field(package version) field(source text)
//               field(entry name)
//               u64 number of headers, then field(name) field(text) of each
//               list(options) field(architecture)
//   key       = first 16 bytes of SHA-256(common), then
//               first 16 bytes of SHA-256(common field(NVRTC fingerprint))
//
// The first half alone says "the same kernel by whatever compiler": entries of another NVRTC share this
// prefix of the file name, which is how a seed folder or a process that must not compile can use them. Paths,
// times, host and driver are not in.
#pragma once

#include <string>
#include <vector>

#include "base/kernel_source.hpp"
#include "base/sha256.hpp"

namespace dgj {

using CacheKey = Digest;

inline constexpr const char* kCacheSchema = "1";  // also the folder v1; raise it when the entry format or the
                                                  // key changes
inline constexpr std::size_t kSameKernelBytes = 16;

CacheKey make_key(const KernelSource& source, const std::vector<std::string>& options,
                  const std::string& fingerprint, const std::string& package_version);

}  // namespace dgj
