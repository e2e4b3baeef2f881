// SPDX-License-Identifier: Apache-2.0
//
// The checks of a factored step on a GPU before it changes anything.

#ifndef TFX_LARGEOUT_CORE_GPU_FACTORED_CHECKS_H_
#define TFX_LARGEOUT_CORE_GPU_FACTORED_CHECKS_H_

#include <cstdint>

#include "core/factored_state.h"
#include "core/factored_update.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The faults of a step, in the order of the checks.
enum class FactoredRefusal {
  kCurrentSlot,  // not a slot
  kSlotRows,     // at a position: not in [0, C]
  kSumOfSlotRows,
  kHidden,      // not finite at a position, also the arrays below
  kLabels,      // at a position: neither a class nor -1
  kRowSlot,     // of the label at a position: not a slot
  kRowsOfSlot,  // slot_rows has 0 for the slot of the label at a position
  kGramHidden,
  kUHidden,
  kGTarget,
  kGSquares,
  kGSum,
  kLearningRate,
  kWeightDecay,
  kNone
};

constexpr int kMostLanczosSteps = 64;

struct FactoredVerdict {
  // FactoredRefusal times 2^48 plus the position.
  unsigned long long refusal;
  int is_safe;       // M can be inverted
  int needs_anchor;  // U' is ill-conditioned
  double learning_rate, weight_decay;
  // If M is not safe: the tridiagonal matrix of Lanczos's method for 2 eta H^T G H.
  int num_lanczos;
  double diagonal[kMostLanczosSteps], beside[kMostLanczosSteps];

  FactoredRefusal Refusal() const { return static_cast<FactoredRefusal>(refusal >> 48); }
  int64_t Position() const { return static_cast<int64_t>(refusal & 0xffffffffffff); }
};

// The rates of a step, on the device.
struct StepRates {
  double decay;  // eta lambda
  double eta;    // of the step before the decay of W: learning_rate / (1 - decay)
};

// Starts to set the rates and the faults of the verdict; M is assumed safe and U well-conditioned.
// Rates are on the device.
template <typename T>
void CheckFactoredStep(CUstream_st* stream, const FactoredState<T>& state,
                       const FactoredBatch<T>& batch, const FactoredGradients<T>& gradients,
                       const T* learning_rate, const T* weight_decay, FactoredVerdict* verdict,
                       StepRates* rates);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FACTORED_CHECKS_H_
