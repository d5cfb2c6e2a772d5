// Shared and global memory.
#pragma once

#include "ptx/base.cuh"

namespace dgj::ptx {

DGJ_DEVICE u32 shared_base() { return emu::shared_base(); }

template <class T>
DGJ_DEVICE T load_shared_as(u32 address, Where w) {
    T v;
    emu::load_shared(&v, address, sizeof v, w);
    return v;
}
template <class T>
DGJ_DEVICE T load_global_as(const void* p, Where w) {
    T v;
    emu::load_global(&v, p, sizeof v, w);
    return v;
}

DGJ_DEVICE float load_shared(u32 address, Where w = {}) { return load_shared_as<float>(address, w); }
DGJ_DEVICE Float2 load_shared2(u32 address, Where w = {}) { return load_shared_as<Float2>(address, w); }
DGJ_DEVICE Float4 load_shared4(u32 address, Where w = {}) { return load_shared_as<Float4>(address, w); }
DGJ_DEVICE u32 load_shared_u32(u32 address, Where w = {}) { return load_shared_as<u32>(address, w); }
DGJ_DEVICE Word4 load_shared_word4(u32 address, Where w = {}) { return load_shared_as<Word4>(address, w); }
DGJ_DEVICE void store_shared(u32 address, float v, Where w = {}) {
    emu::store_shared(address, &v, sizeof v, w);
}
DGJ_DEVICE void store_shared2(u32 address, float x, float y, Where w = {}) {
    const Float2 v{x, y};
    emu::store_shared(address, &v, sizeof v, w);
}
DGJ_DEVICE void store_shared_u32(u32 address, u32 v, Where w = {}) {
    emu::store_shared(address, &v, sizeof v, w);
}
DGJ_DEVICE void store_shared_word4(u32 address, Word4 v, Where w = {}) {
    emu::store_shared(address, &v, sizeof v, w);
}

DGJ_DEVICE float load_global(const float* p, Where w = {}) { return load_global_as<float>(p, w); }
DGJ_DEVICE u16 load_global_u16(const void* p, Where w = {}) { return load_global_as<u16>(p, w); }
DGJ_DEVICE u32 load_global_u32(const void* p, Where w = {}) { return load_global_as<u32>(p, w); }
DGJ_DEVICE Word4 load_global_word4(const void* p, Where w = {}) { return load_global_as<Word4>(p, w); }
DGJ_DEVICE void prefetch_line(const void* p, Where w = {}) { emu::prefetch_global(p, w); }
DGJ_DEVICE i32 load_global_i32(const i32* p, Where w = {}) { return load_global_as<i32>(p, w); }
DGJ_DEVICE void store_global(float* p, float v, Where w = {}) { emu::store_global(p, &v, sizeof v, w); }
DGJ_DEVICE void store_global2(void* p, float x, float y, Where w = {}) {
    const Float2 v{x, y};
    emu::store_global(p, &v, sizeof v, w);
}
DGJ_DEVICE void store_global_word4(void* p, Word4 v, Where w = {}) { emu::store_global(p, &v, sizeof v, w); }

DGJ_DEVICE void store_matrix4(u32 address, u32 t0, u32 t1, u32 t2, u32 t3, Where w = {}) {
    const u32 tiles[4] = {t0, t1, t2, t3};
    emu::store_matrix(address, tiles, 4, false, w);
}
DGJ_DEVICE void store_matrix4_transposed(u32 address, u32 t0, u32 t1, u32 t2, u32 t3, Where w = {}) {
    const u32 tiles[4] = {t0, t1, t2, t3};
    emu::store_matrix(address, tiles, 4, true, w);
}
DGJ_DEVICE void copy_async4(u32 shared, const void* global, bool valid, Where w = {}) {
    emu::copy_async(shared, global, 4, valid ? 4 : 0, w);
}
DGJ_DEVICE void copy_async16(u32 shared, const void* global, u32 valid_bytes, Where w = {}) {
    emu::copy_async(shared, global, 16, valid_bytes, w);
}

}  // namespace dgj::ptx
