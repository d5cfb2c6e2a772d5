// Shared and global memory. Shared memory is addressed by 32-bit offsets (PTX state space .shared::cta).
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

// Base of the dynamic shared memory. The address is taken once, as a value the compiler cannot turn back into
// a 64-bit generic pointer: otherwise NVRTC re-materialises the conversion at every use.
DGJ_DEVICE u32 shared_base() {
    extern __shared__ __align__(1024) unsigned char dgj_dynamic_shared[];
    u32 base;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }"
        : "=r"(base)
        : "l"((u64)dgj_dynamic_shared));
    return base;
}

DGJ_DEVICE float load_shared(u32 address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
    return v;
}
DGJ_DEVICE Float2 load_shared2(u32 address) {
    Float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
    return v;
}
DGJ_DEVICE Float4 load_shared4(u32 address) {
    Float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address));
    return v;
}
DGJ_DEVICE u32 load_shared_u32(u32 address) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}
DGJ_DEVICE Word4 load_shared_word4(u32 address) {
    Word4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
DGJ_DEVICE void store_shared(u32 address, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
DGJ_DEVICE void store_shared2(u32 address, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
DGJ_DEVICE void store_shared_u32(u32 address, u32 v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
DGJ_DEVICE void store_shared_word4(u32 address, Word4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

DGJ_DEVICE float load_global(const float* p) {
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
DGJ_DEVICE u16 load_global_u16(const void* p) {
    u16 v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
    return v;
}
DGJ_DEVICE u32 load_global_u32(const void* p) {
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DGJ_DEVICE Word4 load_global_word4(const void* p) {
    Word4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
// The line around p to L2.
DGJ_DEVICE void prefetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory"); }
DGJ_DEVICE i32 load_global_i32(const i32* p) {
    i32 v;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DGJ_DEVICE void store_global(float* p, float v) {
    asm volatile("st.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
DGJ_DEVICE void store_global2(void* p, float x, float y) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(x), "f"(y) : "memory");
}
DGJ_DEVICE void store_global_word4(void* p, Word4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// Four 8x8 tiles of 16-bit elements from the WGMMA accumulator layout to shared memory. Lane l gives the
// address of row l % 8 of tile l / 8 (PTX ISA, stmatrix).
DGJ_DEVICE void store_matrix4(u32 address, u32 t0, u32 t1, u32 t2, u32 t3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(t0),
                 "r"(t1), "r"(t2), "r"(t3)
                 : "memory");
}

// The same, each tile transposed on its way: row l % 8 in memory is column l % 8 of the registers' tile.
DGJ_DEVICE void store_matrix4_transposed(u32 address, u32 t0, u32 t1, u32 t2, u32 t3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(t0), "r"(t1), "r"(t2), "r"(t3)
                 : "memory");
}

// Four bytes from global to shared memory without registers; copies zero when `valid` is false and reads
// nothing then.
DGJ_DEVICE void copy_async4(u32 shared, const void* global, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 4u : 0u)
                 : "memory");
}

// Sixteen bytes, of which the first `valid_bytes` are read and the rest become zero.
DGJ_DEVICE void copy_async16(u32 shared, const void* global, u32 valid_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid_bytes)
                 : "memory");
}

}  // namespace dgj::ptx
