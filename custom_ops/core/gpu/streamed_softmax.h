// SPDX-License-Identifier: Apache-2.0
//
// Sums of exponentials relative to a maximum, for passes over the logits of a layer on a GPU.

#ifndef TFX_LARGEOUT_CORE_GPU_STREAMED_SOFTMAX_H_
#define TFX_LARGEOUT_CORE_GPU_STREAMED_SOFTMAX_H_

#include "core/gpu/cuda_on_cpu.h"

namespace tfx::core::gpu {

// exp(logit - maximum), also for infinities.
__device__ inline float ExpBelow(float logit, float maximum) {
  return logit == maximum ? 1.f : expf(logit - maximum);
}

// log Z, from the sum of ExpBelow: NaN if a logit is, else the maximum if that is infinite.
__device__ inline float LogOfSum(double sum, float maximum) {
  const bool is_number = isnan(sum) || !isinf(maximum);
  return is_number ? static_cast<float>(maximum + log(sum)) : maximum;
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_STREAMED_SOFTMAX_H_
