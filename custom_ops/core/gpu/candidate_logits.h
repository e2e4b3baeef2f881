// SPDX-License-Identifier: Apache-2.0
//
// core/candidate_logits.h on a GPU.

#ifndef TFX_LARGEOUT_CORE_GPU_CANDIDATE_LOGITS_H_
#define TFX_LARGEOUT_CORE_GPU_CANDIDATE_LOGITS_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/candidate_logits.h"
#include "core/gpu/error.h"

struct CUstream_st;

namespace tfx::core::gpu {

// Bytes of device memory that CandidateLogits needs besides inputs and outputs, aligned to 16: 4 S
// D for shared candidates, 0 for candidates per example.
int64_t CandidateLogitsScratchBytes(const LayerWeights& weights, const CandidateBatch& batch);

// Starts core::CandidateLogits on a stream, with arrays on the device. Returns an error; then
// outputs are undefined. An id that is not in [0, C) counts as padding.
Error CandidateLogits(CUstream_st* stream, const LayerWeights& weights, const CandidateBatch& batch,
                      void* scratch, const CandidateLogitsOutputs& outputs);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CANDIDATE_LOGITS_H_
