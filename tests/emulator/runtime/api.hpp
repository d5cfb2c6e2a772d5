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

enum class Scope { kCta, kCluster, kGpu, kSystem };

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
// ldmatrix, stmatrix: count 1, 2 or 4 8x8 tiles of 16-bit elements.
void load_matrix(u32* tiles, u32 count, bool transposed, u32 address, Where);
void store_matrix(u32 address, const u32* tiles, u32 count, bool transposed, Where);
// cp.async of 4, 8 or 16 bytes, of which `valid` come from global memory; the rest is zero.
void copy_async(u32 shared, const void* global, u32 bytes, u32 valid, Where);

// Strong operations: atom, red, ld and st with an order other than .weak, and fence.
enum class Order { kRelaxed, kAcquire, kRelease, kAcquireRelease };
struct Atomic {
    Combine how;
    ElementType type;
    Order order = Order::kRelaxed;
    Scope scope = Scope::kGpu;
};
// Both return the old value. compare: for kCompareAndSwap alone. `rank`: of the block whose shared memory it
// is.
u64 atomic_shared(const Atomic&, u32 address, u32 rank, u64 value, u64 compare, Where);
u64 atomic_global(const Atomic&, void* address, u64 value, u64 compare, Where);
u64 load_strong(ElementType, const void* address, Order, Scope, Where);
void fence(Scope, Where);  // fence.acq_rel

// Shared memory of another block of the cluster: ld.shared::cluster, st.shared::cluster.
void load_remote(void* to, u32 address, u32 rank, u32 bytes, Where);
void store_remote(u32 address, u32 rank, const void* from, u32 bytes, Where);

void barrier_init(u32 barrier, u32 arrivals, Where);
void fence_barrier_init(Where);
// Scope: .release or .acquire at .cta (PTX's default) or .cluster.
void barrier_wait(u32 barrier, u32 parity, Where, Scope = Scope::kCta);
bool barrier_test(u32 barrier, u32 parity, Where);
void barrier_arrive(u32 barrier, u32 rank, Where, Scope = Scope::kCta);  // in block `rank` of the cluster
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

// Warp collectives over the lanes of `members`.
constexpr u32 kWholeWarp = 0xffffffff;
enum class Shuffle { kUp, kDown, kXor, kIndex };
struct Shuffled {
    u32 value;
    bool in_range;  // else the value is the lane's own
};
// clamp: operand c of shfl.sync (upper bound, and the segment mask from bit 8); 0 for kUp and 31 for the
// others give the whole warp.
Shuffled shuffle(Shuffle, u32 value, u32 lane_or_delta, u32 clamp, u32 members, Where);
u32 shuffle_xor(u32 value, u32 mask, Where);
enum class Vote { kAll, kAny, kUniform, kBallot };
u32 vote(Vote, bool predicate, u32 members, Where);  // 0 or 1; kBallot: a bit for each lane
u32 match_any(u64 value, u32 members, Where);        // the lanes with the same value
u32 match_all(u64 value, u32 members, Where);        // members if all have the same value, else 0
u32 elect(u32 members, Where);                       // the leader's lane, the same each time

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
enum class MatrixType { kE4M3, kE5M2, kBF16, kF16, kS8, kU8 };
struct Wgmma {
    u32 n;
    MatrixType a, b;
    bool a_mn_major = false, b_mn_major = false;
};
// d: n / 2 floats, or integers for kS8 and kU8. A comes from descriptor `a`, or from four words of each lane.
void wgmma(void* d, const Wgmma&, u64 a, const u32* a_registers, u64 b, u32 accumulate, Where);
void wgmma_commit(Where);
void wgmma_wait(u32 pending, Where);

}  // namespace dgj::emu
