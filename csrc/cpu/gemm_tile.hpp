// One tile of D, as fp8_gemm_nt and the grouped operations cut them. The bits of an element do not depend on
// the tile that it is in.
#pragma once

#include <cstdint>

#include "problem/fp8_gemm_call.hpp"

namespace dgj::cpu {

inline constexpr int kCols = 16;  // a panel of columns; divides 128, so that it has one scale
inline constexpr int kMaxTileRows = 192;
// 192 x 128 tile, decoded A and B blocks: 256 KiB, half of a usual L2
inline constexpr int kMaxTileCols = 128;

// Waking the other threads costs some microseconds: as much as this many products.
inline bool worth_threads(std::int64_t m, std::int64_t n, std::int64_t k) {
    return m * n >= (1 << 16) || m * n * (k > 1 ? k : 1) >= (1 << 17);
}

// Columns of a tile, given the number of tiles that lie above each other. Columns are given up when there are
// too few tiles: with few rows, decoding B is most of the work and is not repeated by narrower tiles.
inline std::int64_t tile_cols(std::int64_t tiles_down, std::int64_t n, int threads) {
    std::int64_t cols = kMaxTileCols;
    while (cols > kCols && tiles_down * ((n + cols - 1) / cols) < 4 * threads) cols /= 2;
    return cols;
}

// Rows row0 .. row0 + rows of D, of at most kMaxTileRows; columns likewise.
void compute_tile(const Fp8GemmCall& call, std::int64_t row0, std::int64_t col0, int rows, int cols);

}  // namespace dgj::cpu
