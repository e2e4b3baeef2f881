// SPDX-License-Identifier: Apache-2.0
//
// Rows of W on a GPU, by ids. An id that is not in [0, C) has no row.

#ifndef TFX_LARGEOUT_CORE_GPU_CANDIDATE_ROWS_H_
#define TFX_LARGEOUT_CORE_GPU_CANDIDATE_ROWS_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/gpu/cuda_on_cpu.h"

struct CUstream_st;

namespace tfx::core::gpu {

__device__ inline bool IsRow(int64_t num_classes, int64_t id) {
  return id >= 0 && id < num_classes;
}

// Starts to copy rows ids[0] to ids[n - 1] to `rows` [n, D], with 0 for an id without a row.
// bfloat16 rows are widened.
void GatherRows(CUstream_st* stream, const LayerWeights& weights, const int64_t* ids, int64_t n,
                float* rows);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CANDIDATE_ROWS_H_
