// SPDX-License-Identifier: Apache-2.0
//
// What a factored step on a GPU says of itself before it changes anything.

#ifndef TFX_LARGEOUT_CORE_GPU_FACTORED_CHECKS_H_
#define TFX_LARGEOUT_CORE_GPU_FACTORED_CHECKS_H_

#include <cstdint>

#include "core/factored_state.h"
#include "core/factored_update.h"

struct CUstream_st;

namespace tfx::core::gpu {

// What a step refuses, in the order in which it is looked for.
enum class FactoredRefusal {
  kCurrentSlot,  // is none
  kSlotRows,     // at a position: not in [0, C]
  kSumOfSlotRows,
  kHidden,      // not finite at a position, as the arrays below
  kLabels,      // at a position: no class and not -1
  kRowSlot,     // of the label at a position: is none
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
  // Where M is not safe: the tridiagonal matrix of Lanczos's method for 2 eta H^T G H.
  int num_lanczos;
  double diagonal[kMostLanczosSteps], beside[kMostLanczosSteps];

  FactoredRefusal Refusal() const { return static_cast<FactoredRefusal>(refusal >> 48); }
  int64_t Position() const { return static_cast<int64_t>(refusal & 0xffffffffffff); }
};

// The rates of a step, on the device.
struct StepRates {
  double decay;  // eta lambda
  double eta;    // of the step before W decays: learning_rate / (1 - decay)
};

// Begins to set the rates and what is refused of the verdict; M is safe and U well-conditioned so
// far. Rates are on the device.
template <typename T>
void CheckFactoredStep(CUstream_st* stream, const FactoredState<T>& state,
                       const FactoredBatch<T>& batch, const FactoredGradients<T>& gradients,
                       const T* learning_rate, const T* weight_decay, FactoredVerdict* verdict,
                       StepRates* rates);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FACTORED_CHECKS_H_
