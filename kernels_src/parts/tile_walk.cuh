// The order in which a persistent grid takes the tiles of D. Clusters take units of kClusterRows x
// kClusterCols tiles; kRaster rows of units are walked together, column by column, so that what is in flight
// shares A and B in L2:
//
//      unit column:   0  1  2 ...            kRaster = 2
//      unit row 0     0  2  4
//               1     1  3  5
//               2    ...
#pragma once

#include "ptx/base.cuh"
#include "ptx/cluster.cuh"

namespace dgj {

template <u32 kTileRows, u32 kTileCols, u32 kClusterRows, u32 kClusterCols, u32 kRaster>
struct TileWalk {
    static constexpr u32 kCluster = kClusterRows * kClusterCols;
    u32 unit_rows, unit_cols, units, unit, step;
    u32 row_in_cluster = 0, col_in_cluster = 0;

    // rows x cols: extent of the matrix that the tiles cover.
    DGJ_DEVICE TileWalk(u32 rows, u32 cols) {
        unit_rows = ceil_div(ceil_div(rows, kTileRows), kClusterRows);
        unit_cols = ceil_div(ceil_div(cols, kTileCols), kClusterCols);
        units = unit_rows * unit_cols;
        unit = ptx::block_index() / kCluster;
        step = ptx::grid_size() / kCluster;
        if constexpr (kCluster > 1) {
            const u32 rank = ptx::cluster_rank();
            row_in_cluster = rank / kClusterCols;
            col_in_cluster = rank % kClusterCols;
        }
    }
    DGJ_DEVICE bool valid() const { return unit < units; }
    DGJ_DEVICE bool last() const { return unit + step >= units; }
    DGJ_DEVICE void next() { unit += step; }

    // First row and first column of this block's tile. A tile of an incomplete unit can lie outside the
    // matrix.
    DGJ_DEVICE void locate(u32& row, u32& col) const {
        const u32 per_band = kRaster * unit_cols;
        const u32 band = unit / per_band, in_band = unit - band * per_band;
        const u32 rows_left = unit_rows - band * kRaster,
                  band_rows = rows_left < kRaster ? rows_left : kRaster;
        const u32 unit_col = in_band / band_rows,
                  unit_row = band * kRaster + (in_band - unit_col * band_rows);
        row = (unit_row * kClusterRows + row_in_cluster) * kTileRows;
        col = (unit_col * kClusterCols + col_in_cluster) * kTileCols;
    }

private:
    DGJ_DEVICE static u32 ceil_div(u32 a, u32 b) { return a / b + (a % b != 0); }
};

}  // namespace dgj
