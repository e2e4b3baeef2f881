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

// Bytes of device memory that CandidateLogits needs beside inputs and outputs, aligned to 16:
// 4 S D for shared candidates, none for an example's own.
int64_t CandidateLogitsScratchBytes(const LayerWeights& weights, const CandidateBatch& batch);

// Begins on a stream what core::CandidateLogits does, with arrays on the device. Returns what
// is wrong: then outputs are undefined. An id that is not in [0, C) is as padding.
Error CandidateLogits(CUstream_st* stream, const LayerWeights& weights, const CandidateBatch& batch,
                      void* scratch, const CandidateLogitsOutputs& outputs);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CANDIDATE_LOGITS_H_
