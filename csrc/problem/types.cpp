#include "problem/types.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

namespace dgj {
namespace {
std::span<const std::int64_t> used(const std::array<std::int64_t, TensorView::kMaxDims>& values, int ndim) {
    return {values.data(), static_cast<std::size_t>(std::clamp(ndim, 0, TensorView::kMaxDims))};
}
}  // namespace

std::string shape_text(const TensorView& t) {
    return fmt::format("[{}]", fmt::join(used(t.shape, t.ndim), ", "));
}
std::string stride_text(const TensorView& t) {
    return fmt::format("({})", fmt::join(used(t.stride, t.ndim), ", "));
}

}  // namespace dgj
