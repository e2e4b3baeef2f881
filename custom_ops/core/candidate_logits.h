// SPDX-License-Identifier: Apache-2.0
//
// Logits of labels and candidate classes, from only their rows of W.

#ifndef TFX_LARGEOUT_CORE_CANDIDATE_LOGITS_H_
#define TFX_LARGEOUT_CORE_CANDIDATE_LOGITS_H_

#include "core/candidate_batch.h"
#include "core/execution.h"

namespace tfx::core {

struct CandidateLogitsOutputs {
  float* true_logits;       // [N, K]; 0 at padding
  float* candidate_logits;  // [N, S]; 0 at padding
  bool* hits;               // [N, S]: the candidate is one of the example's labels
};

// Fills the outputs. The result does not depend on the number of workers.
//
// Cost: 2 N (K + S) D FLOP. Memory: O(S) and O(D) per worker for shared candidates; for candidates
// per example 12 N (K + S) bytes and at most 1 MiB, or 4 KiB per worker if they are few.
void CandidateLogits(const LayerWeights& weights, const CandidateBatch& batch,
                     const Execution& execution, const CandidateLogitsOutputs& outputs);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_CANDIDATE_LOGITS_H_
