// SPDX-License-Identifier: Apache-2.0
//
// The backward step of labels and candidate classes: updates only their rows of W and b.

#ifndef TFX_LARGEOUT_CORE_CANDIDATE_UPDATE_H_
#define TFX_LARGEOUT_CORE_CANDIDATE_UPDATE_H_

#include "core/candidate_batch.h"
#include "core/execution.h"
#include "core/row_update.h"

namespace tfx::core {

// The gradients of the loss with respect to the logits.
struct CandidateGradients {
  const float* labels;      // [N, K]; padding does not enter any sum
  const float* candidates;  // [N, S]; likewise
};

// The variables that change: W, b and their slots.
struct LayerRows {
  WeightRows kernel;
  WeightRows bias;  // of width 1; its weights are null without a bias
};

// Unless `hidden_gradient` [N, D] is null, sets it to dL/dh at the W before the step. Unless
// `updater` is null, updates each row of a label or candidate once, with the sum of its gradients.
// The result does not depend on the number of workers.
//
// Cost: O(N (K + S) D). Memory: O((N + S) D) for shared candidates; for candidates per example 24 N
// (K + S) bytes, at most 1 MiB, and up to 64 copies of hidden_gradient, at most about 64 MiB or 4
// copies.
//
// REQUIRES: gradients are finite, except at padding; `weights` belong to `rows`.
void CandidateUpdate(const LayerWeights& weights, const LayerRows& rows,
                     const CandidateBatch& batch, const CandidateGradients& gradients,
                     const RowUpdater* updater, const Execution& execution, float* hidden_gradient);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_CANDIDATE_UPDATE_H_
