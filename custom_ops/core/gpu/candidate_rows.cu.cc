// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/candidate_rows.h"

#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"

namespace tfx::core::gpu {
namespace {

// A warp for each id.
__global__ void __launch_bounds__(kThreads)
    Gather(LayerWeights weights, const int64_t* ids, int64_t n, float* rows) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (i >= n) return;
  const int64_t id = ids[i], width = weights.width;
  const bool is_row = IsRow(weights.num_classes, id);
  for (int64_t d = threadIdx.x % kWarpSize; d < width; d += kWarpSize) {
    rows[i * width + d] = is_row ? KernelAt(weights, id, d) : 0.f;
  }
}

}  // namespace

void GatherRows(CUstream_st* stream, const LayerWeights& weights, const int64_t* ids, int64_t n,
                float* rows) {
  TFX_LAUNCH_BLOCKS(Gather, BlocksOf(n, kWarps), stream, weights, ids, n, rows);
}

}  // namespace tfx::core::gpu
