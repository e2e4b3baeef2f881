// SPDX-License-Identifier: Apache-2.0
//
// Tiles of an array, one block of threads each: their counts are summed up in order.

#ifndef TFX_LARGEOUT_CORE_GPU_TILES_H_
#define TFX_LARGEOUT_CORE_GPU_TILES_H_

#include <cstdint>

#include "core/gpu/block_reduction.h"

struct CUstream_st;

namespace tfx::core::gpu {

constexpr int kRounds = 8;                 // entries per thread
constexpr int kTile = kRounds * kThreads;  // entries per block

// Starts to turn counts [rows, tiles] into exclusive prefix sums of each row; totals [rows] are the
// sums of rows.
void SumTiles(CUstream_st* stream, uint32_t* counts, int64_t num_rows, int64_t num_tiles,
              uint32_t* totals);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_TILES_H_
