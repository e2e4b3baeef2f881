// SPDX-License-Identifier: Apache-2.0
//
// core/candidate_update.h on a GPU.

#ifndef TFX_LARGEOUT_CORE_GPU_CANDIDATE_UPDATE_H_
#define TFX_LARGEOUT_CORE_GPU_CANDIDATE_UPDATE_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/candidate_update.h"
#include "core/gpu/candidate_refusal.h"
#include "core/gpu/error.h"
#include "core/gpu/row_rule.h"

struct CUstream_st;

namespace tfx::core::gpu {

// Bytes of device memory that CandidateUpdate needs besides inputs and outputs, aligned to 16.
// About 28 per position of a class, of N K + S or N (K + S); and 4 S (N + 2 D) for shared
// candidates.
int64_t CandidateUpdateScratchBytes(const LayerWeights& weights, const CandidateBatch& batch);

// Starts core::SharedCandidateUpdate or core::OwnCandidateUpdate on a stream, with arrays on the
// device; only the gradient if `rule` is null, only the step if `hidden_gradient` is. Returns an
// error; then the arrays are undefined. An id that is not in [0, C) counts as padding.
//
// If *fault, on the device, is set, rows don't change and the gradient is 0. A null pointer means
// no fault.
//
// The order of sums depends only on the batch: labels first, then candidates, in their order.
// bfloat16 weights are rounded once per step; all arithmetic and slots are in float.
Error CandidateUpdate(CUstream_st* stream, const LayerWeights& weights, const LayerRows& rows,
                      const CandidateBatch& batch, const CandidateGradients& gradients,
                      const RowRule* rule, const CandidateFault* fault, void* scratch,
                      float* hidden_gradient);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CANDIDATE_UPDATE_H_
