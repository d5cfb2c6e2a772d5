// Plain loads and stores, cp.async, and the checks that all accesses share.
#include <cstring>

#include "runtime/checks.hpp"

namespace dgj::emu {
namespace {

void check_alignment(u64 address, u32 alignment, const char* what) {
    if (address % alignment != 0)
        machine().fault(text("%s: address %#llx is not a multiple of %u", what, address, alignment));
}

}  // namespace

const ThreadPlace& place() { return machine().thread().place; }
u32 shared_base() { return kSharedBase; }

u8* shared_at(Block& block, u32 address, u32 bytes, u32 alignment, const char* what, Where) {
    check_alignment(address, alignment, what);
    if (address < kSharedBase || u64{address} + bytes > kSharedBase + u64{machine().launch.shared_bytes})
        machine().fault(text("%s: %u bytes at offset %d leave the %u bytes of shared memory", what, bytes,
                             static_cast<i32>(address - kSharedBase), machine().launch.shared_bytes));
    if (block.live == 0) machine().fault(text("%s: block %u has exited", what, block.index));
    return block.memory.data() + (address - kSharedBase);
}

Block& peer(u32 rank, const char* what, Where) {
    Machine& m = machine();
    if (rank >= m.launch.cluster)
        m.fault(text("%s: rank %u, but the cluster has %u blocks", what, rank, m.launch.cluster));
    Block& block = *m.blocks[rank];
    if (block.live == 0) m.fault(text("%s: block %u (rank %u) has exited", what, block.index, rank));
    return block;
}

Buffer& buffer_at(u64 address, u64 bytes, const char* what, Where) {
    for (Buffer& b : machine().buffers)
        if (address >= b.begin && address + bytes <= b.begin + b.bytes) return b;
    machine().fault(text("%s: %llu bytes at %#llx lie outside every buffer of the call", what, bytes,
                         address));
}

void note_written(Buffer& buffer, u64 address, u64 bytes, bool combined, const char* what, Where) {
    if (!buffer.writable) machine().fault(text("%s: writes to an input", what));
    const u8 now = combined ? Buffer::kCombined : Buffer::kWritten;
    for (u64 i = address - buffer.begin; i < address - buffer.begin + bytes; i++) {
        u8& before = buffer.written[i / Buffer::kPage][i % Buffer::kPage];
        if (before == Buffer::kWritten || (before != 0 && before != now))
            machine().fault(text("%s: byte %llu of the output is written twice", what, i));
        before = now;
    }
}

void report(const char* what, const Block& block, const Shadow::Conflict& c) {
    Machine& m = machine();
    std::string message = text("%s: shared memory of block %u, offset %u: %s\n  the earlier access: %s", what,
                               block.index, c.address - kSharedBase, c.rule,
                               m.component_name(c.component).c_str());
    if (c.line != 0) message += text(", line %d", c.line);
    m.fault(message);
}

// Of words that atomics wrote, every writer must be ordered before, not only the last.
static void check_atomics(const char* what, const Block& block, u32 address, u32 bytes, const Clocks& clocks,
                          bool write) {
    if (block.atomics.empty()) return;
    for (u32 at = address / 4 * 4; at < address + bytes; at += 4) {
        const auto place = block.atomics.find(at);
        if (place == block.atomics.end() || block.shadow.kind(at) != Shadow::Kind::kAtomic) continue;
        for (const auto& [component, clock] : place->second.writers)
            if ((write ? clocks.order(component) : clocks.visible(component)) < clock)
                report(what, block, {"an atomic is not ordered before this access", at, component, clock, 0});
    }
}

void check_shared_read(const char* what, Block& block, u32 address, u32 bytes, const Clocks& clocks,
                       bool async_proxy, bool may_be_unwritten) {
    if (const auto c = block.shadow.check_read(address, bytes, clocks, async_proxy, may_be_unwritten))
        report(what, block, c);
    check_atomics(what, block, address, bytes, clocks, false);
}

void check_shared_write(const char* what, Block& block, u32 address, u32 bytes, const Clocks& clocks,
                        bool async_proxy) {
    if (const auto c = block.shadow.check_write(address, bytes, clocks, async_proxy)) report(what, block, c);
    check_atomics(what, block, address, bytes, clocks, true);
    for (const Operation* o : block.reading)
        if (address < o->source_address + o->source_bytes && o->source_address < address + bytes)
            machine().fault(text("%s: offset %u is still read by %s (%s): nothing has waited for it", what,
                                 address - kSharedBase, o->what.c_str(), at(o->where).c_str()));
}

void load_shared(void* to, u32 address, u32 bytes, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    const u8* from = shared_at(*t.block, address, bytes, bytes, "ld.shared", w);
    check_shared_read("ld.shared", *t.block, address, bytes, t.clocks, false, true);  // unwritten: poison
    t.block->shadow.note_read(address, bytes, t.place.thread, t.clocks.order(t.id));
    std::memcpy(to, from, bytes);
}

void store_shared(u32 address, const void* from, u32 bytes, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    u8* to = shared_at(*t.block, address, bytes, bytes, "st.shared", w);
    check_shared_write("st.shared", *t.block, address, bytes, t.clocks, false);
    t.block->shadow.note_write(address, bytes, Shadow::Kind::kGeneric, t.id, t.clocks.order(t.id), w.line);
    std::memcpy(to, from, bytes);
}

static Buffer& load_from_global(const char* what, void* to, const void* from, u32 bytes, Where w) {
    Machine& m = machine();
    m.step(w);
    const u64 address = reinterpret_cast<u64>(from);
    check_prior_kernels(what);
    check_alignment(address, bytes, what);
    Buffer& buffer = buffer_at(address, bytes, what, w);
    std::memcpy(to, from, bytes);
    return buffer;
}

void load_global(void* to, const void* from, u32 bytes, Where w) {
    load_from_global("ld.global", to, from, bytes, w);
}

// PTX ISA, ld.global.nc: the memory must be read-only as long as the kernel runs.
void load_read_only(void* to, const void* from, u32 bytes, Where w) {
    if (load_from_global("ld.global.nc", to, from, bytes, w).writable)
        machine().fault("ld.global.nc: the kernel may write to what it loads as read-only");
}

void store_global(void* to, const void* from, u32 bytes, Where w) {
    Machine& m = machine();
    m.step(w);
    const u64 address = reinterpret_cast<u64>(to);
    check_prior_kernels("st.global");
    check_alignment(address, bytes, "st.global");
    note_written(buffer_at(address, bytes, "st.global", w), address, bytes, false, "st.global", w);
    std::memcpy(to, from, bytes);
}

// PTX ISA, cp.async: what src-size leaves of cp-size is filled with zeros, and not read. It is a weak
// operation of
// the generic proxy; only cp.async.mbarrier.arrive or a wait makes its writes visible, to the own thread too.
void copy_async(u32 shared, const void* global, u32 bytes, u32 valid, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    Block& block = *t.block;
    const u64 from = reinterpret_cast<u64>(global);
    check_prior_kernels("cp.async");
    if ((bytes != 4 && bytes != 8 && bytes != 16) || valid > bytes)
        m.fault(text("cp.async: %u of %u bytes", valid, bytes));
    u8* to = shared_at(block, shared, bytes, bytes, "cp.async", w);
    check_alignment(from, bytes, "cp.async");
    if (valid != 0) buffer_at(from, valid, "cp.async", w);
    check_shared_write("cp.async", block, shared, bytes, t.clocks, false);
    block.shadow.note_write(shared, bytes, Shadow::Kind::kInFlight, t.id, 0, w.line);
    std::memset(to, 0xff, bytes);
    auto operation = std::make_shared<Operation>();
    operation->what = "cp.async";
    operation->where = w;
    operation->source_address = shared;  // where it writes: the arrive that covers it needs to know
    operation->source_bytes = bytes;
    operation->steps = {[to, from, bytes, valid] {
        std::memset(to, 0, bytes);
        std::memcpy(to, reinterpret_cast<const void*>(from), valid);
    }};
    t.copies.push_back(operation);
    m.start(operation);
}

}  // namespace dgj::emu
