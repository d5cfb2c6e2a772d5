// Names that every device file uses: integer types, function qualifiers, the thread's place in the grid.
// Everything CUDA-specific stands in this folder, so that another implementation of it can run the same
// kernels on a CPU.
#pragma once

#define DGJ_DEVICE __device__ __forceinline__
#define DGJ_UNROLL _Pragma("unroll")
#define DGJ_NO_UNROLL _Pragma("unroll 1")
#define DGJ_KERNEL(threads) DGJ_KERNEL_SHARING_SM(threads, 1)
// With few enough registers for `ctas` CTAs on an SM.
#define DGJ_KERNEL_SHARING_SM(threads, ctas) extern "C" __global__ void __launch_bounds__(threads, ctas)
#define DGJ_GRID_CONSTANT __grid_constant__

namespace dgj {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(64) TensorMap {  // the driver's CUtensorMap, opaque to kernels
    u64 opaque[16];
};

struct Float2 {
    float x, y;
};
struct alignas(16) Float4 {
    float x, y, z, w;
};
struct alignas(16) Word4 {
    u32 x, y, z, w;
};

namespace ptx {

DGJ_DEVICE u32 thread_index() { return threadIdx.x; }
DGJ_DEVICE u32 block_index() { return blockIdx.x; }
DGJ_DEVICE u32 grid_size() { return gridDim.x; }
DGJ_DEVICE u32 lane_index() {
    u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// The same value, of which NVVM knows nothing: what is computed from it is not taken apart and computed
// again.
DGJ_DEVICE u32 hidden(u32 v) {
    asm("" : "+r"(v));
    return v;
}

// The warp's index in its block, as a value that the compiler knows to be the same in all lanes.
DGJ_DEVICE u32 warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

}  // namespace ptx
}  // namespace dgj
