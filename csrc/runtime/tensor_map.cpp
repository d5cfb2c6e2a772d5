#include "runtime/tensor_map.hpp"

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

}  // namespace

CUtensorMap encode_tensor_map(const TensorMapKey& key, const char* name) {
    alignas(64) CUtensorMap map{};
    const cuuint64_t dims[] = {key.inner, key.rows};
    const cuuint64_t pitches[] = {key.pitch_bytes};  // of every dimension but the innermost
    const cuuint32_t box[] = {kBoxBytes / static_cast<cuuint32_t>(size_of(key.dtype)), key.box_rows};
    const cuuint32_t steps[] = {1, 1};
    const CUresult r = driver().tensor_map_encode_tiled(
        &map, map_type(key.dtype), 2, reinterpret_cast<void*>(key.address), dims, pitches, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);  // "none" fills with zeros; the other choice is NaN
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
    const cuuint64_t dims[] = {key.inner, key.rows, key.matrices};
    const cuuint64_t pitches[] = {key.pitch_bytes, key.step_bytes};
    const cuuint32_t box[] = {kBoxBytes / static_cast<cuuint32_t>(size_of(key.dtype)), key.box_rows, 1};
    const cuuint32_t steps[] = {1, 1, 1};
    const CUresult r = driver().tensor_map_encode_tiled(
        &map, map_type(key.dtype), 3, reinterpret_cast<void*>(key.address), dims, pitches, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS)
        fail(ErrorKind::kRuntime,
             "cuTensorMapEncodeTiled failed for {} [{}, {}, {}] {} at {:#x}, row pitch {} bytes, {} bytes "
             "from "
             "matrix to "
             "matrix, box of {} rows: {}",
             name, key.matrices, key.rows, key.inner, name_of(key.dtype), key.address, key.pitch_bytes,
             key.step_bytes, key.box_rows, describe(r));
    return map;
}

TwoBoxesMaps encode_tensor_map(const TwoBoxesMapKey& key, const char* name) {
    MatricesMapKey few = key.matrices;
    few.box_rows = key.few_box_rows;
    return {encode_tensor_map(key.matrices, name), encode_tensor_map(few, name)};
}

}  // namespace dgj::runtime
