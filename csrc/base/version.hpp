// The package version, the same as in pyproject.toml. It is part of every cache key.
#pragma once

namespace dgj {

inline constexpr const char* kPackageVersion = "0.1.0";

}  // namespace dgj
