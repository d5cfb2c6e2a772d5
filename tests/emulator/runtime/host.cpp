// What Python calls: encode maps, register buffers, run a kernel.
#include <dlfcn.h>

#include <cstring>

#include "runtime/machine.hpp"

using namespace dgj::emu;

extern "C" {

struct HostBuffer {
    u64 begin, bytes;
    u32 writable, reserved;
};

// Returns 0, or 1 with the reason in `message`.
int dgj_emulator_run(void (*entry)(void**), void** parameters, u32 blocks, u32 threads, u32 cluster,
                     u32 shared_bytes, u64 seed, const HostBuffer* host_buffers, u32 buffer_count,
                     char* message, u32 message_bytes, u64* statistics) {
    std::vector<Buffer> buffers;
    for (u32 i = 0; i < buffer_count; i++) {
        const HostBuffer& b = host_buffers[i];
        buffers.push_back({b.begin, b.bytes, b.writable != 0, std::vector<u8>(b.writable ? b.bytes : 0)});
    }
    const LaunchArguments launch{entry, parameters, blocks, threads, cluster, shared_bytes, seed};
    try {
        Machine machine(launch, buffers);
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

void dgj_emulator_encode_map(Map* map, u64 address, u64 inner, u64 rows, u64 pitch, u64 element_bytes,
                             u64 box_inner, u64 box_rows, u64 swizzle) {
    *map = {kMapMagic, address, inner, rows, pitch, element_bytes, box_inner, box_rows, swizzle, {}};
}

}  // extern "C"
