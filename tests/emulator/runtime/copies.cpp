// The bulk copy engine: tiled loads and stores by tensor map, copies between the blocks of a cluster, bulk
// groups.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/checks.hpp"
#include "runtime/combine.hpp"

namespace dgj::emu {
namespace {

const Map& map_at(const void* p, const char* what) {
    const auto& map = *static_cast<const Map*>(p);
    if (map.magic != kMapMagic) machine().fault(text("%s: the tensor map was not encoded", what));
    return map;
}

std::string box_name(const char* what, const Coordinates& at) {
    std::string name = std::string(what) + " of the box at (";
    for (u32 d = 0; d < at.rank; d++) name += text(d ? ", %d" : "%d", at.at[d]);
    return name + ")";
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

// Where row `r` of the box lies in the tensor (its first element may lie outside in the innermost dimension).
// False: the row is outside, wholly.
bool locate_row(const Map& map, const Coordinates& at, u32 r, u64& address) {
    address = map.address;
    for (u32 d = 1; d < map.rank; d++) {
        const i64 x = i64{at.at[d]} + r % map.box[d];
        r /= map.box[d];
        if (x < 0 || static_cast<u64>(x) >= map.extent[d]) return false;
        address += static_cast<u64>(x) * map.pitch[d - 1];
    }
    return true;
}

// Elements [first, end) of a row of the box that are inside.
void clip_row(const Map& map, const Coordinates& at, u32& first, u32& end) {
    const i64 x = at.at[0], extent = static_cast<i64>(map.extent[0]);
    first = static_cast<u32>(std::clamp<i64>(-x, 0, map.box[0]));
    end = static_cast<u32>(std::clamp<i64>(extent - x, first, map.box[0]));
}

// Elements of rows [first, end) of the box to their places, zeros for those outside (PTX ISA, "Tensor
// Dimension, size and format: Out of Boundary Access").
void fill_rows(const Map& map, u8* memory, u32 shared, const Coordinates& at, u32 first, u32 end) {
    const u32 width = map.row_bytes(), size = map.element_bytes();
    u32 inside, outside;
    clip_row(map, at, inside, outside);
    std::vector<u8> line(width);
    for (u32 r = first; r < end; r++) {
        std::fill(line.begin(), line.end(), u8{0});
        u64 from;
        if (outside > inside && locate_row(map, at, r, from)) {
            from += static_cast<u64>(at.at[0] + static_cast<i64>(inside)) * size;
            std::memcpy(&line[inside * size], reinterpret_cast<const void*>(from), (outside - inside) * size);
        }
        for (u32 c = 0; c < width; c += 16) {
            const u32 to = swizzled(shared + r * width + c, map.swizzle);
            std::memcpy(memory + (to - kSharedBase), &line[c], 16);
        }
    }
}

// Rows are told apart by more than one set of coordinates: what a box reaches then says where it may lie, not
// what all coordinates together could reach. The map's first address must be memory all the same
// (docs/emulator.md).
bool overlaps(const Map& map) {
    for (u32 d = 2; d < map.rank; d++)
        if (map.extent[d] > 1 && map.pitch[d - 1] < map.extent[d - 1] * map.pitch[d - 2]) return true;
    return false;
}

void check_map_buffer(const Map& map, const Coordinates& at, const char* what, Where w) {
    if (overlaps(map)) {
        buffer_at(map.address, map.element_bytes(), what, w);
        u32 first, end;
        u64 address;
        clip_row(map, at, first, end);
        const i64 inner = i64{at.at[0]} + first;
        for (u32 r = 0; r < map.rows() && end > first; r++)
            if (locate_row(map, at, r, address))
                buffer_at(address + static_cast<u64>(inner) * map.element_bytes(),
                          u64{end - first} * map.element_bytes(), what, w);
        return;
    }
    unsigned __int128 bytes = map.extent[0] * map.element_bytes();
    for (u32 d = 1; d < map.rank; d++)
        bytes += static_cast<unsigned __int128>(map.extent[d] - 1) * map.pitch[d - 1];
    if (map.address + bytes > ~u64{0})
        machine().fault(text("%s: the tensor of the map wraps around 64-bit addresses", what));
    buffer_at(map.address, static_cast<u64>(bytes), what, w);
}

void check_rank(const Map& map, const Coordinates& at, const char* what) {
    if (map.rank != at.rank)
        machine().fault(text("%s: %u coordinates for a map of %u dimensions", what, at.rank, map.rank));
}

enum class Direction { kLoad, kStore };

// What Hopper refuses as an illegal instruction, though the ISA's text does not name it (tests/validation).
void check_box(const Map& map, const Coordinates& at, Direction direction, const char* what) {
    Machine& m = machine();
    check_rank(map, at, what);
    if (i64{at.at[0]} * map.element_bytes() % 16 != 0)
        m.fault(
            text("%s: the innermost coordinate %d, in bytes, is not a multiple of 16: an illegal "
                 "instruction",
                 what, at.at[0]));
    for (u32 d = 0; direction == Direction::kStore && d < at.rank; d++)
        if (at.at[d] < 0)
            m.fault(text("%s: coordinate %d is negative, which only loads may be: an illegal instruction",
                         what, at.at[d]));
    if (map.row_bytes() < map.swizzle)
        m.fault(
            text("emulator: %s of rows of %u bytes with a swizzle of %u is not modelled: they lie %u "
                 "bytes apart in shared memory",
                 what, map.row_bytes(), map.swizzle, map.swizzle));
}

// PTX ISA, cp.async.bulk.tensor: addresses in shared memory are multiples of 128.
constexpr u32 kTileAlignment = 128;

void start_load(Block& to, u32 shared, const Map& map, const Coordinates& at, u32 barrier, Where w) {
    Machine& m = machine();
    const u32 width = map.row_bytes(), rows = map.rows();
    u8* begin = shared_at(to, shared, rows * width, kTileAlignment, "cp.async.bulk.tensor", w);
    check_usable_by_copies(to, barrier, "cp.async.bulk.tensor", w);
    check_shared_write("cp.async.bulk.tensor", to, shared, rows * width, m.thread().clocks, true);
    to.shadow.note_write(shared, rows * width, Shadow::Kind::kInFlight, m.thread().id, 0, w.line);
    std::memset(begin, 0xff, rows * width);

    auto operation = std::make_shared<Operation>();
    operation->what = box_name("cp.async.bulk.tensor load", at);
    operation->where = w;
    // Two parts, whose bytes are counted one by one: nothing promises that a box arrives whole.
    const u32 cut = rows > 1 ? static_cast<u32>(m.random(rows - 1)) + 1 : rows;
    for (const auto& [first, end] : {std::pair{0u, cut}, std::pair{cut, rows}}) {
        if (first == end) continue;
        operation->steps.push_back([&to, map, shared, at, barrier, first = first, end = end, width, w,
                                    o = operation.get()] {
            check_alive(to, *o);
            fill_rows(map, to.memory.data(), shared, at, first, end);
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

// A hint; the address is not even looked at.
void prefetch_map(const void*, Where w) { machine().step(w); }

// PTX ISA, cp.async.bulk.tensor: with .multicast::cluster the box goes to the same offset of each block of
// the mask, and the signal to the mbarrier at the same offset.
void load_tile(u32 shared, const void* p, const Coordinates& at, u32 barrier, u32 mask, Where w) {
    Machine& m = machine();
    m.step(w);
    check_prior_kernels("cp.async.bulk.tensor");
    const Map& map = map_at(p, "cp.async.bulk.tensor");
    check_box(map, at, Direction::kLoad, "cp.async.bulk.tensor");
    check_map_buffer(map, at, "cp.async.bulk.tensor", w);
    if (mask == 0 || mask >> m.launch.cluster != 0) m.fault(text("cp.async.bulk.tensor: mask %#x", mask));
    for (u32 rank = 0; rank < m.launch.cluster; rank++)
        if (mask >> rank & 1) start_load(peer(rank, "cp.async.bulk.tensor", w), shared, map, at, barrier, w);
}

// Prefetches to L2 change nothing here, but what they name must exist.
void prefetch_tile(const void* p, const Coordinates& at, Where w) {
    machine().step(w);
    const char* what = "cp.async.bulk.prefetch.tensor";
    check_prior_kernels(what);
    const Map& map = map_at(p, what);
    check_box(map, at, Direction::kLoad, what);
    check_map_buffer(map, at, what, w);
}

void prefetch_bytes(const void* global, u32 bytes, Where w) {
    machine().step(w);
    const char* what = "cp.async.bulk.prefetch.L2";
    check_prior_kernels(what);
    const u64 from = reinterpret_cast<u64>(global);
    if (bytes == 0 || bytes % 16 != 0 || from % 16 != 0)
        machine().fault(text("%s: %u bytes at %#llx, not multiples of 16", what, bytes, from));
    buffer_at(from, bytes, what, w);
}

void prefetch_global(const void* global, Where w) {
    machine().step(w);
    buffer_at(reinterpret_cast<u64>(global), 1, "prefetch.global.L2", w);
}

// PTX ISA, cp.async.bulk: both addresses and the size are multiples of 16. What is read must lie in a buffer,
// or in the 16 bytes that hold its beginning or its end: those are in the same page, and the kernel may fetch
// them as long as it ignores them.
void load_bytes(u32 shared, const void* global, u32 bytes, u32 barrier, Where w) {
    Machine& m = machine();
    m.step(w);
    const char* what = "cp.async.bulk";
    check_prior_kernels(what);
    Block& to = *m.thread().block;
    const u64 from = reinterpret_cast<u64>(global);
    if (bytes == 0 || bytes % 16 != 0) m.fault(text("%s: %u bytes, not a multiple of 16", what, bytes));
    if (from % 16 != 0) m.fault(text("%s: global address %#llx is not a multiple of 16", what, from));
    const auto holds = [&](const Buffer& b) {
        return b.bytes != 0 && from >= b.begin / 16 * 16 && from < b.begin + b.bytes;
    };
    const auto buffer = std::find_if(m.buffers.begin(), m.buffers.end(), holds);
    if (buffer == m.buffers.end())
        m.fault(text("%s: %u bytes at %#llx lie outside every buffer of the call", what, bytes, from));
    const u64 end = buffer->begin + buffer->bytes, first = std::max(from, buffer->begin);
    if (from + bytes > (end + 15) / 16 * 16)
        m.fault(text("%s: %u bytes at %#llx go past the end of their buffer", what, bytes, from));
    const u32 skipped = static_cast<u32>(first - from),
              inside = static_cast<u32>(std::min(from + bytes, end) - first);
    u8* begin = shared_at(to, shared, bytes, 16, what, w);
    check_usable_by_copies(to, barrier, what, w);
    check_shared_write(what, to, shared, bytes, m.thread().clocks, true);
    to.shadow.note_write(shared, bytes, Shadow::Kind::kInFlight, m.thread().id, 0, w.line);
    std::memset(begin, 0xff, bytes);

    auto operation = std::make_shared<Operation>();
    operation->what = text("cp.async.bulk of %u bytes", bytes);
    operation->where = w;
    operation->steps = {[&to, shared, first, skipped, inside, bytes, barrier, w, o = operation.get()] {
        check_alive(to, *o);
        std::memcpy(&to.memory[shared - kSharedBase + skipped], reinterpret_cast<const void*>(first), inside);
        end_of_write(to, shared, bytes, barrier, w.line);
        complete_bytes(to, barrier, bytes);
    }};
    m.start(std::move(operation));
}

namespace {

constexpr u32 kPieceBytes = 16;
struct Piece {  // of a store: bytes that lie together on both sides
    u32 from;
    u64 to;
    u8 data[kPieceBytes];
};

void combine_piece(const Piece& piece, Combine how, ElementType type) {
    const u32 size = bytes_of(type);
    for (u32 i = 0; i < kPieceBytes; i += size) {
        u64 old = 0, value = 0;
        void* to = reinterpret_cast<void*>(piece.to + i);
        std::memcpy(&old, to, size);
        std::memcpy(&value, piece.data + i, size);
        value = combine(how, type, old, value);
        std::memcpy(to, &value, size);
    }
}

// Reads all pieces in one step and writes them in another; a member of the thread's bulk group.
void start_store(const char* what, std::string name, u32 shared, u32 bytes, std::vector<Piece> list,
                 Combine how, ElementType type, Where w) {
    Machine& m = machine();
    Thread& t = m.thread();
    Block& block = *t.block;
    for (const Piece& piece : list) {
        check_shared_read(what, block, piece.from, kPieceBytes, t.clocks, true, false);
        note_written(buffer_at(piece.to, kPieceBytes, what, w), piece.to, kPieceBytes,
                     how != Combine::kReplace, what, w);
    }
    auto pieces = std::make_shared<std::vector<Piece>>(std::move(list));
    auto operation = std::make_shared<Operation>();
    operation->what = std::move(name);
    operation->where = w;
    operation->source_address = shared;
    operation->source_bytes = bytes;
    operation->steps = {[&block, pieces] {
                            for (Piece& piece : *pieces)
                                std::memcpy(piece.data, &block.memory[piece.from - kSharedBase], kPieceBytes);
                        },
                        [pieces, how, type] {
                            for (const Piece& piece : *pieces) combine_piece(piece, how, type);
                        }};
    block.reading.push_back(operation.get());
    t.uncommitted.push_back(operation);
    m.start(std::move(operation));
}

void check_combine(const char* what, Combine how, ElementType type) {
    if (!can_combine(how, type)) machine().fault(text("%s: no .%s for this type", what, name_of(how)));
}

}  // namespace

// PTX ISA, cp.async.bulk.tensor and cp.reduce.async.bulk.tensor, global.shared::cta with .bulk_group: parts
// outside the tensor are not written. Hopper goes by 16 bytes: those that hold a row's end are written whole
// (tests/validation).
void store_tile(const void* p, u32 shared, const Coordinates& at, Combine how, Where w) {
    Machine& m = machine();
    m.step(w);
    const char* what = how == Combine::kReplace ? "cp.async.bulk.tensor store"
                                                : "cp.reduce.async.bulk.tensor";
    check_prior_kernels(what);
    const Map map = map_at(p, what);
    check_box(map, at, Direction::kStore, what);
    const u32 width = map.row_bytes(), rows = map.rows(), size = map.element_bytes();
    shared_at(*m.thread().block, shared, rows * width, kTileAlignment, what, w);
    check_map_buffer(map, at, what, w);
    check_combine(what, how, map.type);

    std::vector<Piece> pieces;
    const u64 first = static_cast<u64>(at.at[0]) * size, end = map.extent[0] * size;
    for (u32 r = 0; r < rows; r++) {
        u64 row;
        if (!locate_row(map, at, r, row)) continue;
        for (u32 x = 0; x < width && first + x < end; x += kPieceBytes)
            pieces.push_back({swizzled(shared + r * width + x, map.swizzle), row + first + x, {}});
    }
    start_store(what, box_name(what, at), shared, rows * width, std::move(pieces), how, map.type, w);
}

// PTX ISA, cp.async.bulk and cp.reduce.async.bulk, global.shared::cta: addresses and size in 16 bytes.
void store_bytes(void* global, u32 shared, u32 bytes, Combine how, ElementType type, Where w) {
    Machine& m = machine();
    m.step(w);
    const char* what = how == Combine::kReplace ? "cp.async.bulk store" : "cp.reduce.async.bulk";
    check_prior_kernels(what);
    check_combine(what, how, type);
    const u64 to = reinterpret_cast<u64>(global);
    if (bytes == 0 || bytes % 16 != 0) m.fault(text("%s: %u bytes, not a multiple of 16", what, bytes));
    if (to % 16 != 0) m.fault(text("%s: global address %#llx is not a multiple of 16", what, to));
    shared_at(*m.thread().block, shared, bytes, 16, what, w);
    std::vector<Piece> pieces;
    for (u32 i = 0; i < bytes; i += kPieceBytes) pieces.push_back({shared + i, to + i, {}});
    start_store(what, text("%s of %u bytes", what, bytes), shared, bytes, std::move(pieces), how, type, w);
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
            if (std::exchange(operation->read_over, true)) continue;  // others may have the memory by now
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
