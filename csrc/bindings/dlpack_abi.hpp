// The binary interface through which torch (>= 2.10) lets C code look at a tensor: DLPack 1.3's exchange
// table, found in the capsule torch.Tensor.__dlpack_c_exchange_api__. Declared here so that no header of
// torch or DLPack is needed at build.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dgj::bindings::dlpack {

inline constexpr const char* kCapsuleName = "dlpack_exchange_api";
inline constexpr std::uint32_t kMajor = 1;  // a different major has a different layout

// DLDeviceType
inline constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3;

// DLDataTypeCode
inline constexpr std::uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6;
inline constexpr std::uint8_t kFloat8E4M3Fn = 10, kFloat8E4M3Fnuz = 11, kFloat8E5M2 = 12,
                              kFloat8E5M2Fnuz = 13, kFloat8E8M0 = 14, kFloat4E2M1Fn = 17;

struct Device {
    std::int32_t type;
    std::int32_t id;
};

struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; NULL means row-major
    std::uint64_t byte_offset;
};

struct ApiHeader {
    std::uint32_t major, minor;
    ApiHeader* older;  // the same table for an older major, or NULL
};

struct ExchangeApi {
    ApiHeader header;
    void* managed_tensor_allocator;
    void* managed_tensor_from_object;
    void* managed_tensor_to_object;
    int (*tensor_from_object)(void* object, Tensor* out);  // borrows; -1 with a Python error on failure; may
                                                           // be NULL
    int (*current_work_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, shape) == 24, "DLTensor of a 64-bit machine");
static_assert(sizeof(ApiHeader) == 16 && offsetof(ExchangeApi, tensor_from_object) == 40,
              "DLPackExchangeAPI");

}  // namespace dgj::bindings::dlpack
