// SPDX-License-Identifier: Apache-2.0
//
// Sums of exponentials relative to a maximum, for passes over the logits of a layer on a GPU.

#ifndef TFX_LARGEOUT_CORE_GPU_STREAMED_SOFTMAX_H_
#define TFX_LARGEOUT_CORE_GPU_STREAMED_SOFTMAX_H_

#include "core/gpu/cuda_on_cpu.h"

namespace tfx::core::gpu {

// exp(logit - maximum), also for infinities.
__device__ inline float ExpBelow(float logit, float maximum) {
  return expf(logit == maximum ? 0.f : logit - maximum);  // without a branch
}

// Terms of a partition function.
struct SoftmaxTerms {
  double sum = 0;             // of ExpBelow(o, maximum); NaN if a logit is
  float maximum = -INFINITY;  // of the logits that are numbers
};

__device__ inline SoftmaxTerms operator+(const SoftmaxTerms& a, const SoftmaxTerms& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  return {a.sum * ExpBelow(a.maximum, maximum) + b.sum * ExpBelow(b.maximum, maximum), maximum};
}

// log Z, from the sum of ExpBelow: NaN if a logit is, else the maximum if that is infinite.
template <typename T>
__device__ float LogOfSum(T sum, float maximum) {
  const bool is_number = isnan(sum) || !isinf(maximum);
  return is_number ? static_cast<float>(maximum + log(sum)) : maximum;
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_STREAMED_SOFTMAX_H_
