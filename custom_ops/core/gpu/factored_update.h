// SPDX-License-Identifier: Apache-2.0
//
// core/factored_update.h on a GPU, in two parts, between which the host reads the verdict: the
// first computes the step and changes nothing, the second changes the state.

#ifndef TFX_LARGEOUT_CORE_GPU_FACTORED_UPDATE_H_
#define TFX_LARGEOUT_CORE_GPU_FACTORED_UPDATE_H_

#include <cstdint>

#include "core/factored_state.h"
#include "core/factored_update.h"
#include "core/gpu/error.h"
#include "core/gpu/factored_checks.h"

struct CUstream_st;

namespace tfx::core::gpu {

// A step of a layer; arrays are on the device.
template <typename T>
struct FactoredStepArguments {
  FactoredState<T> state;
  FactoredBatch<T> batch;
  FactoredGradients<T> gradients;
  const T* learning_rate;  // on the device
  const T* weight_decay;
  double max_condition;  // as in FactoredRates
};

// Bytes of device memory that a step needs besides its arguments and its result, aligned to 16: 8
// bytes for each of about B (D + B) or, for B > D, D^2 numbers more than the matrices have.
template <typename T>
int64_t FactoredUpdateScratchBytes(const FactoredStepArguments<T>& step);

// The verdict of a step, in scratch memory of the device.
const FactoredVerdict* VerdictIn(const void* scratch);

// Starts on a stream the gradient [B, D] and, if `update`, the step, all in float64, without
// changing the state. Sets the verdict. Returns an error.
template <typename T>
Error BeginFactoredUpdate(CUstream_st* stream, const FactoredStepArguments<T>& step, bool update,
                          void* scratch, T* hidden_gradient);

// Whether a step diverges, by the verdict of the first part: if M is not safe and 2 eta
// lambda_max(H^T G H) is above 2 - eta lambda, or NaN.
FactoredOutcome OutcomeOf(const FactoredVerdict& verdict);

// Starts on the same stream to change the state, with the scratch memory of the first part.
// REQUIRES: the verdict, a copy of the first part's verdict, has no fault; the step does not
// diverge. The state may have been copied to other buffers.
template <typename T>
Error EndFactoredUpdate(CUstream_st* stream, const FactoredStepArguments<T>& step,
                        const FactoredVerdict& verdict, void* scratch);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FACTORED_UPDATE_H_
