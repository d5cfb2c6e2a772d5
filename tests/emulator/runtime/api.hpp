// What the emulating ptx/ headers call. Light on purpose: every emulated kernel includes it, the runtime is
// compiled once.
#pragma once

namespace dgj::emu {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using i64 = long long;
using u64 = unsigned long long;

// The line of the kernel that called. As a default argument it is evaluated there.
struct Where {
    const char* file;
    int line;
    constexpr Where(const char* f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}
};

// Numbered as CUtensorMapDataType.
enum class ElementType : u32 { kU8, kU16, kU32, kI32, kU64, kI64, kF16, kF32, kF64, kBF16 };
constexpr u32 bytes_of(ElementType t) {
    constexpr u32 kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    return kBytes[static_cast<u32>(t)];
}

// Where a box begins: innermost coordinate first.
struct Coordinates {
    u32 rank;
    i32 at[5];
};

// What a store or an atomic does with the value that is there.
enum class Combine { kReplace, kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompareAndSwap };

struct ThreadPlace {
    u32 thread, block, blocks, rank;  // in the block; in the grid; of the grid; of the block in its cluster
};
const ThreadPlace& place();
u32 shared_base();

// bytes: 1, 2, 4, 8 or 16, naturally aligned.
void load_shared(void* to, u32 address, u32 bytes, Where);
void store_shared(u32 address, const void* from, u32 bytes, Where);
void load_global(void* to, const void* from, u32 bytes, Where);
void load_read_only(void* to, const void* from, u32 bytes, Where);  // ld.global.nc
void store_global(void* to, const void* from, u32 bytes, Where);
void store_matrix4(u32 address, const u32 (&tiles)[4], Where);
void copy_async4(u32 shared, const void* global, bool valid, Where);

void barrier_init(u32 barrier, u32 arrivals, Where);
void fence_barrier_init(Where);
void barrier_wait(u32 barrier, u32 parity, Where);
void barrier_arrive(u32 barrier, u32 rank, Where);  // in block `rank` of the cluster
void barrier_arrive_expect(u32 barrier, u32 bytes, Where);
void barrier_expect(u32 barrier, u32 bytes, Where);
void barrier_arrive_after_copies(u32 barrier, Where);

void sync_block(Where);
void sync_warp(Where);
void sync_threads(u32 id, u32 threads, Where);
void sync_cluster(Where);
void set_registers(u32 registers, bool raise, Where);
void wait_for_prior_kernels(Where);
void launch_next_kernel(Where);
u32 shuffle_xor(u32 value, u32 mask, Where);

void prefetch_map(const void* map, Where);
void load_tile(u32 shared, const void* map, const Coordinates&, u32 barrier, u32 mask, Where);
void load_bytes(u32 shared, const void* global, u32 bytes, u32 barrier, Where);
void store_tile(const void* map, u32 shared, const Coordinates&, Combine, Where);
void store_bytes(void* global, u32 shared, u32 bytes, Combine, ElementType, Where);
void prefetch_tile(const void* map, const Coordinates&, Where);  // to L2
void prefetch_bytes(const void* global, u32 bytes, Where);       // cp.async.bulk.prefetch.L2
void prefetch_global(const void* global, Where);                 // prefetch.global, a line
void commit_stores(Where);
void wait_stores(u32 pending, bool read_only, Where);
void fence_async_shared(Where);
void copy_to_block(u32 destination, u32 source, u32 bytes, u32 barrier, u32 rank, Where);

void wgmma_fence(Where);
void wgmma_e4m3(float* d, u32 count, u64 a, u64 b, u32 accumulate, Where);
void wgmma_commit(Where);
void wgmma_wait(u32 pending, Where);

}  // namespace dgj::emu
