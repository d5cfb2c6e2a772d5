// The bulk copy engine: tiled loads and stores by tensor map, copies between the blocks of a cluster, bulk
// groups.
#include <algorithm>
#include <cstring>

#include "runtime/checks.hpp"

namespace dgj::emu {
namespace {

const Map& map_at(const void* p, const char* what) {
    const auto& map = *static_cast<const Map*>(p);
    if (map.magic != kMapMagic) machine().fault(text("%s: the tensor map was not encoded", what));
    return map;
}

void check_prior(const char* what) {
    if (!machine().thread().saw_prior_kernels)
        machine().fault(text("%s before griddepcontrol.wait: a prior kernel may still use the memory", what));
}

std::string box_name(const char* what, i32 inner, i32 row) {
    return text("%s of the box at (%d, %d)", what, inner, row);
}

// The copy that wrote [address, +bytes) ends: what it wrote can be read after the mbarrier's current phase.
void end_of_write(Block& block, u32 address, u32 bytes, u32 barrier, int line) {
    const Mbarrier& b = block.barriers.at(barrier);
    block.shadow.note_write(address, bytes, Shadow::Kind::kAsync, b.component, b.phase + 1, line);
}

void check_alive(const Block& block, const Operation& operation) {
    if (block.live == 0)
        machine().fault(operation.what + " (" + at(operation.where) +
                        text("): block %u has exited before it ended", block.index));
}

// Elements of rows [first, end) of the box to their places, zeros for those outside (PTX ISA, "Tensor data
// movement": out of bound accesses are filled with zero).
void fill_rows(const Map& map, u8* memory, u32 shared, i32 inner, i32 row, u32 first, u32 end) {
    const u32 width = static_cast<u32>(map.box_inner * map.element_bytes);
    for (u32 r = first; r < end; r++) {
        std::vector<u8> line(width, 0);
        const i32 y = row + static_cast<i32>(r);
        if (y >= 0 && static_cast<u64>(y) < map.rows)
            for (u32 i = 0; i < map.box_inner; i++) {
                const i32 x = inner + static_cast<i32>(i);
                if (x < 0 || static_cast<u64>(x) >= map.inner) continue;
                const u64 from = map.address + static_cast<u64>(y) * map.pitch +
                                 static_cast<u64>(x) * map.element_bytes;
                std::memcpy(&line[i * map.element_bytes], reinterpret_cast<const void*>(from),
                            map.element_bytes);
            }
        for (u32 c = 0; c < width; c += 16) {
            const u32 to = swizzled(shared + r * width + c, static_cast<u32>(map.swizzle));
            std::memcpy(memory + (to - kSharedBase), &line[c], 16);
        }
    }
}

void check_map_buffer(const Map& map, const char* what, Where w) {
    const u64 bytes = map.rows == 0 ? 0 : (map.rows - 1) * map.pitch + map.inner * map.element_bytes;
    buffer_at(map.address, bytes, what, w);
}

void start_load(Block& to, u32 shared, const Map& map, i32 inner, i32 row, u32 barrier, Where w) {
    Machine& m = machine();
    const u32 width = static_cast<u32>(map.box_inner * map.element_bytes),
              rows = static_cast<u32>(map.box_rows);
    const u32 alignment = map.swizzle == 0 ? 16 : 128;
    u8* begin = shared_at(to, shared, rows * width, alignment, "cp.async.bulk.tensor", w);
    check_usable_by_copies(to, barrier, "cp.async.bulk.tensor", w);
    check_shared_write("cp.async.bulk.tensor", to, shared, rows * width, m.thread().clocks, true);
    to.shadow.note_write(shared, rows * width, Shadow::Kind::kInFlight, m.thread().id, 0, w.line);
    std::memset(begin, 0xff, rows * width);

    auto operation = std::make_shared<Operation>();
    operation->what = box_name("cp.async.bulk.tensor load", inner, row);
    operation->where = w;
    // Two parts, whose bytes are counted one by one: nothing promises that a box arrives whole.
    const u32 cut = rows > 1 ? static_cast<u32>(m.random(rows - 1)) + 1 : rows;
    for (const auto& [first, end] : {std::pair{0u, cut}, std::pair{cut, rows}}) {
        if (first == end) continue;
        operation->steps.push_back([&to, map, shared, inner, row, barrier, first = first, end = end, width, w,
                                    o = operation.get()] {
            check_alive(to, *o);
            fill_rows(map, to.memory.data(), shared, inner, row, first, end);
            end_of_write(to, shared + first * width, (end - first) * width, barrier, w.line);
            complete_bytes(to, barrier, (end - first) * width);
        });
    }
    m.start(std::move(operation));
}

void forget_reading(Block& block, const Operation* operation) {
    auto& list = block.reading;
    list.erase(std::remove(list.begin(), list.end(), operation), list.end());
}

}  // namespace

void prefetch_map(const void* map, Where w) {
    machine().step(w);
    map_at(map, "prefetch.tensormap");
}

// PTX ISA, cp.async.bulk.tensor: with .multicast::cluster the box goes to the same offset of each block of
// the mask, and the signal to the mbarrier at the same offset.
void load_tile(u32 shared, const void* p, i32 inner, i32 row, u32 barrier, u32 mask, Where w) {
    Machine& m = machine();
    m.step(w);
    check_prior("cp.async.bulk.tensor");
    const Map& map = map_at(p, "cp.async.bulk.tensor");
    check_map_buffer(map, "cp.async.bulk.tensor", w);
    if (mask == 0 || mask >> m.launch.cluster != 0) m.fault(text("cp.async.bulk.tensor: mask %#x", mask));
    for (u32 rank = 0; rank < m.launch.cluster; rank++)
        if (mask >> rank & 1)
            start_load(peer(rank, "cp.async.bulk.tensor", w), shared, map, inner, row, barrier, w);
}

// PTX ISA, cp.async.bulk: both addresses and the size are multiples of 16. What is read must lie in a buffer,
// or in the 16 bytes that hold its end: those are in the same page, and the kernel may fetch them as long as
// it ignores them.
void load_bytes(u32 shared, const void* global, u32 bytes, u32 barrier, Where w) {
    Machine& m = machine();
    m.step(w);
    const char* what = "cp.async.bulk";
    check_prior(what);
    Block& to = *m.thread().block;
    const u64 from = reinterpret_cast<u64>(global);
    if (bytes == 0 || bytes % 16 != 0) m.fault(text("%s: %u bytes, not a multiple of 16", what, bytes));
    if (from % 16 != 0) m.fault(text("%s: global address %#llx is not a multiple of 16", what, from));
    const Buffer& buffer = buffer_at(from, 4, what, w);
    const u64 end = buffer.begin + buffer.bytes;
    if (from + bytes > (end + 15) / 16 * 16)
        m.fault(text("%s: %u bytes at %#llx go past the end of their buffer", what, bytes, from));
    const u32 inside = static_cast<u32>(std::min<u64>(bytes, end - from));
    u8* begin = shared_at(to, shared, bytes, 16, what, w);
    check_usable_by_copies(to, barrier, what, w);
    check_shared_write(what, to, shared, bytes, m.thread().clocks, true);
    to.shadow.note_write(shared, bytes, Shadow::Kind::kInFlight, m.thread().id, 0, w.line);
    std::memset(begin, 0xff, bytes);

    auto operation = std::make_shared<Operation>();
    operation->what = text("cp.async.bulk of %u bytes", bytes);
    operation->where = w;
    operation->steps = {[&to, shared, from, inside, bytes, barrier, w, o = operation.get()] {
        check_alive(to, *o);
        std::memcpy(&to.memory[shared - kSharedBase], reinterpret_cast<const void*>(from), inside);
        end_of_write(to, shared, bytes, barrier, w.line);
        complete_bytes(to, barrier, bytes);
    }};
    m.start(std::move(operation));
}

// PTX ISA, cp.async.bulk.tensor, global.shared::cta with .bulk_group: parts outside the tensor are not
// written.
void store_tile(const void* p, u32 shared, i32 inner, i32 row, Where w) {
    Machine& m = machine();
    m.step(w);
    check_prior("cp.async.bulk.tensor store");
    Thread& t = m.thread();
    Block& block = *t.block;
    const Map map = map_at(p, "cp.async.bulk.tensor store");
    const u32 width = static_cast<u32>(map.box_inner * map.element_bytes),
              rows = static_cast<u32>(map.box_rows);
    shared_at(block, shared, rows * width, map.swizzle == 0 ? 16 : 128, "cp.async.bulk.tensor store", w);
    check_map_buffer(map, "cp.async.bulk.tensor store", w);
    if (inner < 0 || row < 0) m.fault("emulator: stores at negative coordinates are not modelled");

    struct Piece {
        u32 from;
        u64 to;
        u32 bytes;
        u8 data[16];
    };
    auto pieces = std::make_shared<std::vector<Piece>>();
    for (u32 r = 0; r < rows && static_cast<u64>(row) + r < map.rows; r++)
        for (u32 c = 0; c < width; c += 16) {
            const u64 x = static_cast<u64>(inner) * map.element_bytes + c,
                      end = map.inner * map.element_bytes;
            if (x >= end) break;
            const u32 bytes = static_cast<u32>(std::min<u64>(16, end - x));
            const u32 from = swizzled(shared + r * width + c, static_cast<u32>(map.swizzle));
            const u64 to = map.address + (static_cast<u64>(row) + r) * map.pitch + x;
            check_shared_read("cp.async.bulk.tensor store", block, from, bytes, t.clocks, true, false);
            note_written(buffer_at(to, bytes, "cp.async.bulk.tensor store", w), to, bytes,
                         "cp.async.bulk.tensor store", w);
            pieces->push_back({from, to, bytes, {}});
        }
    auto operation = std::make_shared<Operation>();
    operation->what = box_name("cp.async.bulk.tensor store", inner, row);
    operation->where = w;
    operation->source_address = shared;
    operation->source_bytes = rows * width;
    operation->steps = {[&block, pieces] {
                            for (Piece& piece : *pieces)
                                std::memcpy(piece.data, &block.memory[piece.from - kSharedBase], piece.bytes);
                        },
                        [pieces] {
                            for (const Piece& piece : *pieces)
                                std::memcpy(reinterpret_cast<void*>(piece.to), piece.data, piece.bytes);
                        }};
    block.reading.push_back(operation.get());
    t.uncommitted.push_back(operation);
    m.start(std::move(operation));
}

void commit_stores(Where w) {
    machine().step(w);
    Thread& t = machine().thread();
    t.groups.push_back(std::move(t.uncommitted));
    t.uncommitted.clear();
}

// PTX ISA, cp.async.bulk.wait_group: at most `pending` of the thread's latest groups are incomplete
// afterwards; with .read, only their reads of shared memory are over.
void wait_stores(u32 pending, bool read_only, Where w) {
    Machine& m = machine();
    m.step(w);
    Thread& t = m.thread();
    release(t);
    for (std::size_t i = 0; i + pending < t.groups.size(); i++)
        for (const auto& operation : t.groups[i]) {
            if (operation->next == 0) operation->steps[operation->next++]();
            if (!read_only) m.finish(*operation);
            forget_reading(*t.block, operation.get());
            t.block->shadow.note_bulk_read(operation->source_address, operation->source_bytes, t.id,
                                           t.clocks.order(t.id));
        }
    while (!read_only && t.groups.size() > pending) t.groups.pop_front();
}

// PTX ISA, fence.proxy.async: this thread's view of earlier writes holds for the asynchronous proxy from here
// on.
void fence_async_shared(Where w) {
    machine().step(w);
    machine().thread().clocks.fence();
}

void copy_to_block(u32 destination, u32 source, u32 bytes, u32 barrier, u32 rank, Where w) {
    Machine& m = machine();
    m.step(w);
    const char* what = "cp.async.bulk.shared::cluster";
    Thread& t = m.thread();
    Block &from = *t.block, &to = peer(rank, what, w);
    if (bytes == 0 || bytes % 16 != 0) m.fault(text("%s: %u bytes, not a multiple of 16", what, bytes));
    shared_at(from, source, bytes, 16, what, w);
    u8* write = shared_at(to, destination, bytes, 16, what, w);
    check_usable_by_copies(to, barrier, what, w);
    check_shared_read(what, from, source, bytes, t.clocks, true, true);
    check_shared_write(what, to, destination, bytes, t.clocks, true);
    to.shadow.note_write(destination, bytes, Shadow::Kind::kInFlight, t.id, 0, w.line);
    std::memset(write, 0xff, bytes);

    auto operation = std::make_shared<Operation>();
    operation->what = text("%s of %u bytes to rank %u", what, bytes, rank);
    operation->where = w;
    operation->source_address = source;
    operation->source_bytes = bytes;
    auto data = std::make_shared<std::vector<u8>>(bytes);
    operation->steps = {[&from, source, data, o = operation.get()] {
                            check_alive(from, *o);
                            std::memcpy(data->data(), &from.memory[source - kSharedBase], data->size());
                        },
                        [&from, &to, source, destination, data, barrier, w, o = operation.get()] {
                            check_alive(to, *o);
                            const u32 size = static_cast<u32>(data->size());
                            std::memcpy(&to.memory[destination - kSharedBase], data->data(), size);
                            const Mbarrier& b = to.barriers.at(barrier);
                            end_of_write(to, destination, size, barrier, w.line);
                            to.shadow.copy_unwritten(destination, size, from.shadow, source);
                            forget_reading(from, o);
                            from.shadow.note_bulk_read(source, size, b.component, b.phase + 1);
                            complete_bytes(to, barrier, size);
                        }};
    from.reading.push_back(operation.get());
    m.start(std::move(operation));
}

}  // namespace dgj::emu
