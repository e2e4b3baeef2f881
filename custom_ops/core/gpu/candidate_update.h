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

// Bytes of device memory that CandidateUpdate needs beside inputs and outputs, aligned to 16. About
// 28 a place of a class, of N K + S or N (K + S); and 4 S (N + 2 D) for shared candidates.
int64_t CandidateUpdateScratchBytes(const LayerWeights& weights, const CandidateBatch& batch);

// Begins on a stream what core::SharedCandidateUpdate and core::OwnCandidateUpdate do, with arrays
// on the device; only the gradient where `rule` is null. Returns what is wrong: then the
// arrays are undefined. An id that is not in [0, C) is as padding.
//
// Where *fault, on the device, is one, the step is none: rows stay as they are and the gradient is
// 0. A null pointer stands for no fault.
//
// Sums are in an order that the batch alone decides: labels first, then candidates, as they stand.
// Weights in bfloat16 are rounded once a step; all arithmetic and slots are in float.
Error CandidateUpdate(CUstream_st* stream, const LayerWeights& weights, const LayerRows& rows,
                      const CandidateBatch& batch, const CandidateGradients& gradients,
                      const RowRule* rule, const CandidateFault* fault, void* scratch,
                      float* hidden_gradient);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CANDIDATE_UPDATE_H_
