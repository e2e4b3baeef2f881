// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/tiles.h"

#include <algorithm>

#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"

namespace tfx::core::gpu {
namespace {

// A warp for each row of counts [rows, tiles], which become the sums of those before in the row.
__global__ void __launch_bounds__(kThreads)
    SumRows(uint32_t* counts, int64_t num_rows, int64_t num_tiles, uint32_t* totals) {
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  if (row >= num_rows) return;
  const unsigned lane = threadIdx.x % kWarpSize;
  uint32_t sum = 0;
  for (int64_t first = 0; first < num_tiles; first += kWarpSize) {
    uint32_t* const count = counts + row * num_tiles + first + lane;
    const bool is_in = first + lane < num_tiles;
    const uint32_t own = is_in ? *count : 0, up_to = SumUpTo(own);
    if (is_in) *count = sum + up_to - own;
    sum += __shfl_sync(~0u, up_to, kWarpSize - 1);
  }
  if (lane == 0) totals[row] = sum;
}

}  // namespace

void SumTiles(CUstream_st* stream, uint32_t* counts, int64_t num_rows, int64_t num_tiles,
              uint32_t* totals) {
  const int64_t warps = std::min<int64_t>(num_rows, kWarps);
  TFX_LAUNCH(SumRows, Grid(BlocksOf(num_rows, warps)), Grid(warps * kWarpSize), 0, stream, counts,
             num_rows, num_tiles, totals);
}

}  // namespace tfx::core::gpu
