// SPDX-License-Identifier: Apache-2.0
//
// The backward step of labels and candidate classes: updates their rows of W and b, and no other.

#ifndef TFX_LARGEOUT_CORE_CANDIDATE_UPDATE_H_
#define TFX_LARGEOUT_CORE_CANDIDATE_UPDATE_H_

#include "core/candidate_batch.h"
#include "core/execution.h"
#include "core/row_update.h"

namespace tfx::core {

// The gradients of the loss with respect to the logits.
struct CandidateGradients {
  const float* labels;      // [N, K]; what stands at padding is not read into any sum
  const float* candidates;  // [N, S]; likewise
};

// What is changed: W, b and their slots.
struct LayerRows {
  WeightRows kernel;
  WeightRows bias;  // of width 1; its weights are null where there is no bias
};

// Sets hidden_gradient [N, D] to dL/dh at the W before the step. Unless `updater` is null, updates
// each row that a label or a candidate names, once, by the sum of its gradients. The result does
// not depend on the number of workers.
//
// Cost: O(N (K + S) D). Memory: O((N + S) D) for shared candidates; for an example's own,
// 24 N (K + S) bytes, at most 1 MiB, and hidden_gradient up to 64 times, at most about 64 MiB or 4
// times.
//
// REQUIRES: gradients are finite, but for padding; `weights` are those of `rows`.
void CandidateUpdate(const LayerWeights& weights, const LayerRows& rows,
                     const CandidateBatch& batch, const CandidateGradients& gradients,
                     const RowUpdater* updater, const Execution& execution, float* hidden_gradient);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_CANDIDATE_UPDATE_H_
