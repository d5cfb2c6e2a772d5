#include "runtime/tensor_map.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "runtime/driver.hpp"

namespace dgj::runtime {
namespace {

constexpr std::uint32_t kBoxBytes = 128;  // one swizzle atom: what a row of the box holds

CUtensorMapDataType map_type(DType dtype) {
    switch (dtype) {
        case DType::kF32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
        case DType::kF16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
        case DType::kBF16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
        default: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    }
}

// dims: innermost first; pitches: of every dimension but that, in bytes. The box is one in dimensions past
// the second.
template <std::size_t kRank>
CUresult encode(CUtensorMap& map, DType dtype, std::uint64_t address,
                const std::array<cuuint64_t, kRank>& dims, const std::array<cuuint64_t, kRank - 1>& pitches,
                std::uint32_t box_rows) {
    std::array<cuuint32_t, kRank> box, steps;
    box.fill(1);
    steps.fill(1);
    box[0] = kBoxBytes / static_cast<cuuint32_t>(size_of(dtype));
    box[1] = box_rows;
    return driver().tensor_map_encode_tiled(
        &map, map_type(dtype), kRank, reinterpret_cast<void*>(address), dims.data(), pitches.data(),
        box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);  // "none" fills with zeros; the other choice is NaN
}

void check(CUresult r, const MatricesMapKey& key, const char* name) {
    if (r == CUDA_SUCCESS) return;
    fail(ErrorKind::kRuntime,
         "cuTensorMapEncodeTiled failed for {} [{}, {}, {}] {} at {:#x}, row pitch {} bytes, {} bytes from "
         "matrix to matrix, box of {} rows: {}",
         name, key.matrices, key.rows, key.inner, name_of(key.dtype), key.address, key.pitch_bytes,
         key.step_bytes, key.box_rows, describe(r));
}

}  // namespace

CUtensorMap encode_tensor_map(const TensorMapKey& key, const char* name) {
    alignas(64) CUtensorMap map{};
    const CUresult r = encode<2>(map, key.dtype, key.address, {key.inner, key.rows}, {key.pitch_bytes},
                                 key.box_rows);
    if (r != CUDA_SUCCESS)
        fail(ErrorKind::kRuntime,
             "cuTensorMapEncodeTiled failed for {} [{}, {}] {} at {:#x}, row pitch {} bytes, box "
             "of {} rows: {}",
             name, key.rows, key.inner, name_of(key.dtype), key.address, key.pitch_bytes, key.box_rows,
             describe(r));
    return map;
}

CUtensorMap encode_tensor_map(const MatricesMapKey& key, const char* name) {
    alignas(64) CUtensorMap map{};
    check(encode<3>(map, key.dtype, key.address, {key.inner, key.rows, key.matrices},
                    {key.pitch_bytes, key.step_bytes}, key.box_rows),
          key, name);
    return map;
}

CUtensorMap encode_tensor_map(const EndedMapKey& key, const char* name) {
    alignas(64) CUtensorMap map{};
    const MatricesMapKey& m = key.matrices;
    const std::uint64_t height = std::min<std::uint64_t>(m.box_rows, m.rows);
    check(encode<4>(map, m.dtype, m.address, {m.inner, height, m.rows - height + 1, m.matrices},
                    {m.pitch_bytes, m.pitch_bytes, m.step_bytes}, m.box_rows),
          m, name);
    return map;
}

TwoBoxesMaps encode_tensor_map(const TwoBoxesMapKey& key, const char* name) {
    MatricesMapKey few = key.matrices;
    few.box_rows = key.few_box_rows;
    return {encode_tensor_map(EndedMapKey{key.matrices}, name), encode_tensor_map(EndedMapKey{few}, name)};
}

}  // namespace dgj::runtime
