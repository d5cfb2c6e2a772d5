// KernelPlan -> kernel source that a person can read and diff. Pure text: no compiler, no driver.
#pragma once

#include <string>
#include <vector>

#include "base/kernel_source.hpp"
#include "plan/plan.hpp"

namespace dgj {

KernelSource emit(const KernelPlan& plan);

// An embedded file of kernels_src by its path relative to it ("sm90/fp8_gemm.cuh"); throws Error(kValue) if
// there is none.
const std::string& embedded_file(const std::string& path);
std::vector<std::string> embedded_file_names();
const std::string& embedded_digest();  // SHA-256 (hex) over all embedded files, computed at build

// `text` plus every embedded header that it includes, directly or not. `generated` are headers that are not
// embedded.
std::vector<NamedText> header_closure(const std::string& text, const std::vector<NamedText>& generated);

}  // namespace dgj
