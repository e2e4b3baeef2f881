// SPDX-License-Identifier: Apache-2.0
//
// The exact SGD step W <- (1 - eta lambda) W - eta dL/dW of the naive layer, on a factored W, in
// O(D^2) per example (Vincent, de Brebisson and Bouthillier 2015, in a more general form: see
// docs/papers/exact_gradient.md). The loss depends on the logits o = W h only through the target
// logits a, q = |o|^2 and s = sum of o.

#ifndef TFX_LARGEOUT_CORE_FACTORED_UPDATE_H_
#define TFX_LARGEOUT_CORE_FACTORED_UPDATE_H_

#include "core/dense_execution.h"
#include "core/factored_state.h"

namespace tfx::core {

template <typename T>
struct FactoredGradients {
  const T* gram_hidden;  // H Q [B, D], from FactoredStatistics
  const T* u_hidden;     // H U^T [B, D], likewise
  const T* g_target;     // dL/da [B, K]
  const T* g_squares;    // dL/dq [B]
  const T* g_sum;        // dL/ds [B]
};

template <typename T>
struct FactoredRates {
  T learning_rate;  // eta
  T weight_decay;   // lambda
  T max_condition;  // a new anchor is set when |U| |P| / D is above; infinity: never
};

// Conditions for a new anchor at the end of a step, on every device. If pivots of M's factorization
// are within these bounds, P M^-1 loses few digits.
constexpr double kLeastPivot = 0.1;
constexpr double kMostPivot = 10;

// If |U| / sqrt(D) is within these bounds, there is no overflow. Weight decay shrinks U in each
// step.
constexpr double kMostScale = 64;

// Whether the step was taken, and why not.
struct FactoredOutcome {
  bool diverges;      // 2 eta lambda_max(H^T diag(g_q) H) > 2 - eta lambda: state unchanged
  double lambda_max;  // if the step diverges
};

// Sets `hidden_gradient` [B, D] to dL/dH and, if `update`, takes the step. The result does not
// depend on the number of workers.
//
// With G = diag(g_q) and M = I - 2 eta H^T G H, P M^-1 comes from a [B, B] system, or a [D, D] one
// if B > D. If M is not positive definite by a margin, P is not needed: the step ends in a new
// anchor.
//
// Cost: about (14 B D^2 + 8 B^2 D + B^3 / 3) FLOP for B <= D, without the statistics and O(B K D);
// independent of C.
// REQUIRES: labels are in [-1, C); all numbers are finite; learning_rate > 0; 0 <= learning_rate
// weight_decay < 1.
template <typename T>
FactoredOutcome FactoredUpdate(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                               const FactoredGradients<T>& gradients, const FactoredRates<T>& rates,
                               bool update, const DenseExecution<T>& execution, T* hidden_gradient);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_UPDATE_H_
