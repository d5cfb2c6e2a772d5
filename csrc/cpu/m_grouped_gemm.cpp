// M-grouped GEMM on the CPU: the rows are cut into runs that share a group, each run is a GEMM of
// fp8_gemm_nt, and the tiles of all runs are one list of work. Rows of no group are in no run, so nothing of
// theirs is read.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/cpu_ops.hpp"
#include "cpu/gemm_tile.hpp"
#include "cpu/pool.hpp"

namespace dgj::cpu {
namespace {

constexpr std::int64_t kNobody = -1;

struct Run {
    std::int64_t group;       // or kNobody: rows to set to zero
    std::int64_t row, count;  // in D; of the group's own matrix where each has one
};

// ---- who owns which rows ------------------------------------------------------------------------
// Values out of range are clamped as GroupForm says: another thread may have written them since they were
// checked.

std::int64_t round_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b * b; }

class Runs {
public:
    explicit Runs(const MGroupedCall& call) : call_(call) {
        switch (call.form) {
            case GroupForm::kIds: from_ids(); break;
            case GroupForm::kEnds: from_ends(); break;
            case GroupForm::kOffsets: from_offsets(); break;
            case GroupForm::kCounts: from_counts(); break;
        }
    }
    std::vector<Run> take() { return std::move(runs_); }

private:
    void add(std::int64_t group, std::int64_t row, std::int64_t count) {
        if (count <= 0 || (group == kNobody && !call_.zero_padding)) return;
        const bool continues = call_.form == GroupForm::kIds && !runs_.empty() &&
                               runs_.back().group == group && runs_.back().row + runs_.back().count == row;
        if (continues) runs_.back().count += count;
        else runs_.push_back({group, row, count});
    }

    std::int64_t clamped(std::int64_t value, std::int64_t low) const {
        return std::max(std::min(value, call_.rows), low);
    }

    void from_ids() {
        for (std::int64_t start = 0; start < call_.rows; start += call_.alignment) {
            const std::int64_t owner = call_.index[start];
            const bool live = owner >= 0 && owner < call_.groups;
            for (std::int64_t row = start; row < std::min(start + call_.alignment, call_.rows); ++row)
                add(live && call_.index[row] == owner ? owner : kNobody, row, 1);
        }
    }

    void from_ends() {
        std::int64_t start = 0, before = 0;
        for (std::int64_t g = 0; g < call_.groups; ++g) {
            const std::int64_t end = clamped(call_.index[g], start);
            add(kNobody, before, std::min(start, call_.rows) - before);
            add(g, start, end - start);
            before = std::min(end, call_.rows);
            start = round_up(end, call_.alignment);
        }
        add(kNobody, before, call_.rows - before);
    }

    void from_offsets() {
        std::int64_t start = clamped(call_.index[0], 0);
        for (std::int64_t g = 0; g < call_.groups; ++g) {
            const std::int64_t end = clamped(call_.index[g + 1], start);
            add(g, start, end - start);
            start = end;
        }
    }

    void from_counts() {
        for (std::int64_t g = 0; g < call_.groups; ++g) add(g, 0, clamped(call_.index[g], 0));
    }

    const MGroupedCall& call_;
    std::vector<Run> runs_;
};

// ---- work ---------------------------------------------------------------------------------------

char* row_of_d(const MGroupedCall& call, std::int64_t group, std::int64_t row) {
    return static_cast<char*>(call.d) + (group * call.d_group + row * call.ldd) * size_of(call.d_dtype);
}

void zero(const MGroupedCall& call, const Run& run) {
    for (std::int64_t row = run.row; row < run.row + run.count; ++row)
        std::memset(row_of_d(call, 0, row), 0, static_cast<std::size_t>(call.n * size_of(call.d_dtype)));
}

Fp8GemmCall gemm_of(const MGroupedCall& call, const Run& run) {
    Fp8GemmCall gemm;
    gemm.m = run.count;
    gemm.n = call.n;
    gemm.k = call.k;
    gemm.d_dtype = call.d_dtype;
    gemm.d = row_of_d(call, run.group, run.row);
    gemm.ldd = call.ldd;
    if (call.k == 0) return gemm;  // nothing else is there
    gemm.a = static_cast<const char*>(call.a) + run.group * call.a_group + run.row * call.lda;
    gemm.b = static_cast<const char*>(call.b) + run.group * call.b_group;
    gemm.sfa = call.sfa + run.group * call.sfa_group + run.row * call.sfa_stride_m;
    gemm.sfb = call.sfb + run.group * call.sfb_group;
    gemm.lda = call.lda;
    gemm.ldb = call.ldb;
    gemm.sfa_stride_m = call.sfa_stride_m;
    gemm.sfa_stride_k = call.sfa_stride_k;
    gemm.sfb_stride_n = call.sfb_stride_n;
    gemm.sfb_stride_k = call.sfb_stride_k;
    return gemm;
}

}  // namespace

void m_grouped_gemm(const MGroupedCall& call) {
    if (call.rows == 0 || call.n == 0) return;
    const std::vector<Run> runs = Runs(call).take();

    std::int64_t rows = 0;
    std::vector<std::int64_t> tiles_before;  // of each run: tiles that lie above each other, in runs before
                                             // it
    tiles_before.reserve(runs.size() + 1);
    tiles_before.push_back(0);
    for (const Run& run : runs) {
        rows += run.count;
        tiles_before.push_back(tiles_before.back() + (run.count + kMaxTileRows - 1) / kMaxTileRows);
    }
    const std::int64_t down = tiles_before.back();
    const bool threaded = worth_threads(rows, call.n, call.k);
    const std::int64_t cols = tile_cols(down, call.n, threaded ? num_threads() : 1);
    const std::int64_t across = (call.n + cols - 1) / cols;

    const auto work = [&](std::int64_t index) {
        const std::int64_t tile = index / across, col = index % across * cols;
        const auto after = std::upper_bound(tiles_before.begin(), tiles_before.end(), tile);
        const auto at = static_cast<std::size_t>(after - tiles_before.begin() - 1);
        const Run& run = runs[at];
        if (run.group == kNobody) {
            if (tile == tiles_before[at] && col == 0) zero(call, run);
            return;
        }
        const std::int64_t row = (tile - tiles_before[at]) * kMaxTileRows;
        compute_tile(gemm_of(call, run), row, col,
                     static_cast<int>(std::min<std::int64_t>(kMaxTileRows, run.count - row)),
                     static_cast<int>(std::min(cols, call.n - col)));
    };
    if (threaded) {
        parallel_for(down * across, work);
    } else {
        for (std::int64_t i = 0; i < down * across; ++i) work(i);
    }
}

}  // namespace dgj::cpu
