// SPDX-License-Identifier: Apache-2.0
//
// core/factored_update.h on a GPU, in two parts, with one look of the host between them: the first
// computes the step and changes nothing, the second changes the state.

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
  double max_condition;  // as FactoredRates has it
};

// Bytes of device memory that a step needs beside its arguments and its result, aligned to 16: 8
// bytes for each of about B (D + B) or, for B > D, D^2 numbers more than the matrices have.
template <typename T>
int64_t FactoredUpdateScratchBytes(const FactoredStepArguments<T>& step);

// The verdict of a step, in scratch memory of the device.
const FactoredVerdict* VerdictIn(const void* scratch);

// Begins on a stream the gradient [B, D] and, if `update`, the step, all in float64; the state
// stays as it is. Sets the verdict. Returns what is wrong.
template <typename T>
Error BeginFactoredUpdate(CUstream_st* stream, const FactoredStepArguments<T>& step, bool update,
                          void* scratch, T* hidden_gradient);

// Whether a step diverges, from the verdict of the first part: where M is not safe and 2 eta
// lambda_max(H^T G H) is above 2 - eta lambda, or not a number.
FactoredOutcome OutcomeOf(const FactoredVerdict& verdict);

// Begins on the same stream to change the state, with the scratch memory of the first part.
// REQUIRES: the verdict, a copy of that of the first part, refuses nothing; the step does not
// diverge. The state may be in other buffers now that were copied.
template <typename T>
Error EndFactoredUpdate(CUstream_st* stream, const FactoredStepArguments<T>& step,
                        const FactoredVerdict& verdict, void* scratch);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FACTORED_UPDATE_H_
