// SPDX-License-Identifier: Apache-2.0
//
// The backward step of the softmax over all classes, without building its logits or gradient.

#ifndef TFX_LARGEOUT_CORE_SOFTMAX_UPDATE_H_
#define TFX_LARGEOUT_CORE_SOFTMAX_UPDATE_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/candidate_update.h"
#include "core/execution.h"
#include "core/row_update.h"

namespace tfx::core {

// A batch, results of its forward pass, and the gradients of the loss.
struct SoftmaxBatch {
  const float* hidden;           // h: [B, D], finite
  const int64_t* labels;         // [B, K], padded with -1
  const float* logsumexp;        // log Z: [B], finite
  const float* target_gradient;  // [B, K]: for the target logits, finite except at padding
  const float* log_z_gradient;   // a: [B], for log Z, finite
  const float* mean_gradient;    // m: [B], for the mean of all logits, finite; null: 0
  int64_t size;                  // B
  int64_t num_labels;            // K
  bool rounds;                   // rounds W, h and dL/do to bfloat16 for the products
};

// With dL/do_ic = a_i exp(o_ic - log Z_i) + m_i / C + the target gradients of (i, c), sets
// hidden_gradient [B, D] to dL/dh at the W before the step. Unless `updater` is null, updates every
// row of W and b, once. The result does not depend on the number of workers.
//
// Cost: 6 B C D FLOP; W and its slots are read once. Memory: up to 64 partial sums of O(B D), at
// most 32 MiB or 8 sums, which also limits the number of workers; and up to 2 MiB, or some hundred
// rows, per worker.
//
// REQUIRES: `weights` belong to `rows`.
void SoftmaxUpdate(const LayerWeights& weights, const LayerRows& rows, const SoftmaxBatch& batch,
                   const RowUpdater* updater, const Execution& execution, float* hidden_gradient);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_SOFTMAX_UPDATE_H_
