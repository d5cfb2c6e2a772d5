#include <cstdint>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/runtime.hpp"

namespace dgj::runtime {

void check_index(const MGroupedCall& call, StreamHandle stream, const char* function) {
    const auto cu_stream = static_cast<CUstream>(stream);
    const ContextGuard current(device_state(call.device.index));
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    check(driver().stream_is_capturing(cu_stream, &capture), "DGJ_CHECK: cuStreamIsCapturing");
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE) return;
    const RelaxedCapture relaxed;  // another stream's capture is none of this one's business

    std::vector<std::int32_t> values(static_cast<std::size_t>(index_size(call)));
    check(driver().memcpy_dtoh_async(values.data(), reinterpret_cast<CUdeviceptr>(call.index),
                                     values.size() * sizeof(std::int32_t), cu_stream),
          "DGJ_CHECK: cuMemcpyDtoHAsync");
    check(driver().stream_synchronize(cu_stream), "DGJ_CHECK: cuStreamSynchronize");
    dgj::check_index(call, values.data(), function);
}

}  // namespace dgj::runtime
