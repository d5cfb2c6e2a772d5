// What Python calls: encode maps, register buffers, run a kernel.
#include <dlfcn.h>
#include <signal.h>

#include <cstring>

#include "runtime/machine.hpp"

using namespace dgj::emu;

namespace {

// A kernel that divides an integer by zero gets some number from a GPU and a signal from a CPU. The signal
// arrives on the stack of the thread that divided, which is left there like any other that broke a rule.
struct DivisionGuard {
    struct sigaction before;
    DivisionGuard() {
        struct sigaction action = {};
        action.sa_handler = [](int) { machine().fault("an integer is divided by zero"); };
        action.sa_flags = SA_NODEFER;
        sigaction(SIGFPE, &action, &before);
    }
    ~DivisionGuard() { sigaction(SIGFPE, &before, nullptr); }
};

}  // namespace

extern "C" {

struct HostBuffer {
    u64 begin, bytes;
    u32 writable, reserved;
};

// Returns 0, or 1 with the reason in `message`.
int dgj_emulator_run(void (*entry)(void**), void** parameters, u32 blocks, u32 threads, u32 cluster,
                     u32 shared_bytes, u64 seed, u32 cut_sums, const u32* left, u32 left_words,
                     const HostBuffer* host_buffers, u32 buffer_count, char* message, u32 message_bytes,
                     u64* statistics) {
    std::vector<Buffer> buffers;
    for (u32 i = 0; i < buffer_count; i++) {
        const HostBuffer& b = host_buffers[i];
        buffers.push_back({b.begin, b.bytes, b.writable != 0, {}});
    }
    const LaunchArguments launch{entry,   parameters,    blocks,
                                 threads, cluster,       shared_bytes,
                                 seed,    cut_sums != 0, {left, left + left_words}};
    try {
        Machine machine(launch, buffers);
        const DivisionGuard guard;
        machine.run();
        statistics[0] = machine.switches;
        statistics[1] = machine.operations;
        return 0;
    } catch (const Fault& fault) {
        std::strncpy(message, fault.text.c_str(), message_bytes - 1);
        message[message_bytes - 1] = 0;
        return 1;
    }
}

// Returns 1 where cuTensorMapEncodeTiled refuses (CUDA driver API, cuTensorMapEncodeTiled).
int dgj_emulator_encode_map(Map* map, u64 address, u32 rank, const u64* extents, const u64* pitches,
                            const u32* box, u32 type, u32 swizzle) {
    *map = {};
    if (rank < 1 || rank > kMaxRank || type > static_cast<u32>(ElementType::kBF16)) return 1;
    Map m{};
    m.magic = kMapMagic, m.address = address, m.rank = rank, m.swizzle = swizzle;
    m.type = static_cast<ElementType>(type);
    if (address % 16 != 0) return 1;
    for (u32 d = 0; d < rank; d++) {
        m.extent[d] = extents[d], m.box[d] = box[d];
        if (extents[d] == 0 || extents[d] > u64{1} << 32 || box[d] == 0 || box[d] > 256) return 1;
        if (d == 0) continue;
        m.pitch[d - 1] = pitches[d - 1];
        if (pitches[d - 1] % 16 != 0 || pitches[d - 1] >= u64{1} << 40) return 1;
    }
    if (m.row_bytes() % 16 != 0 || (swizzle != 0 && m.row_bytes() > swizzle)) return 1;
    *map = m;
    return 0;
}

}  // extern "C"
