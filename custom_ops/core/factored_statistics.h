// SPDX-License-Identifier: Apache-2.0
//
// The statistics of the logits o = W h for the losses of the spherical family, from a factored W,
// without the logits.

#ifndef TFX_LARGEOUT_CORE_FACTORED_STATISTICS_H_
#define TFX_LARGEOUT_CORE_FACTORED_STATISTICS_H_

#include "core/dense_execution.h"
#include "core/factored_state.h"

namespace tfx::core {

template <typename T>
struct FactoredStatisticsOutputs {
  T* target_logits;   // [B, K]: V[y] U h + w.h; 0 at padding
  T* sum_of_squares;  // [B]: h^T Q h
  T* sum;             // [B]: c.h
  T* gram_hidden;     // H Q [B, D]
  T* u_hidden;        // H U^T [B, D]
};

// Fills the outputs. With `update_rows`, stale target rows are also written back in the current
// coordinates; W never changes. The result does not depend on the number of workers.
//
// Cost: 4 B D^2 + 2 B K D FLOP, and 2 D^2 per stale target row.
// REQUIRES: labels are in [-1, C).
template <typename T>
void FactoredStatistics(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                        bool update_rows, const DenseExecution<T>& execution,
                        const FactoredStatisticsOutputs<T>& outputs);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_STATISTICS_H_
