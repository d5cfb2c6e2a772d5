// What runtime_driver checks of the tensor maps that the fake driver (fake_cuda.c) was asked for.
#pragma once

#include <cstdint>
#include <cstdio>

#include "fake_cuda.h"
#include "problem/types.hpp"
#include "runtime/driver.hpp"

namespace {

using namespace dgj;

int g_failures = 0;
#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            g_failures++;                                                                  \
        }                                                                                  \
    } while (false)

void check_box(const FakeMap& map, std::uint32_t rank, std::uint32_t box_rows, DType dtype) {
    CHECK(map.box[0] == 128u / static_cast<unsigned>(size_of(dtype)) && map.box[1] == box_rows);
    CHECK(map.type == (dtype == DType::kU8    ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                       : dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16));
    CHECK(map.rank == rank && map.swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
    CHECK(map.promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_128B &&
          map.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

void check_map(const FakeMap& map, const void* address, std::int64_t rows, std::int64_t inner,
               std::int64_t pitch, std::uint32_t box_rows, DType dtype) {
    CHECK(map.address == reinterpret_cast<std::uintptr_t>(address));
    CHECK(map.dims[0] == static_cast<std::uint64_t>(inner) &&
          map.dims[1] == static_cast<std::uint64_t>(rows));
    CHECK(map.pitch == static_cast<std::uint64_t>(pitch));
    check_box(map, 2, box_rows, dtype);
}

struct Matrices {  // pitch, step: in bytes; step: of more than one matrix
    std::uint64_t rows, inner, pitch, matrices, step;
};

// For boxes that end at any row (EndedMapKey in runtime/tensor_map.hpp).
void check_ended_map(const FakeMap& map, const void* address, const Matrices& m, std::uint32_t box_rows,
                     DType dtype) {
    const std::uint64_t height = m.rows < box_rows ? m.rows : box_rows;
    CHECK(map.address == reinterpret_cast<std::uintptr_t>(address));
    CHECK(map.dims[0] == m.inner && map.dims[1] == height && map.dims[2] == m.rows - height + 1);
    CHECK(map.dims[3] == m.matrices && (m.matrices == 1 || map.step == m.step));
    CHECK(map.pitch == m.pitch && map.second_pitch == m.pitch);
    check_box(map, 4, box_rows, dtype);
}

}  // namespace
