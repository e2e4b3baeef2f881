// SPDX-License-Identifier: Apache-2.0
//
// What passes over the logits of a layer on a GPU have in common: the layer, and sums of
// exponentials relative to a maximum.

#ifndef TFX_LARGEOUT_CORE_GPU_STREAMED_SOFTMAX_H_
#define TFX_LARGEOUT_CORE_GPU_STREAMED_SOFTMAX_H_

#include "core/candidate_batch.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/streamed_logits.h"

namespace tfx::core::gpu {

constexpr LayerWeights WeightsOf(const StreamedLogitsInputs& in) {
  return {in.kernel, in.bias, in.is_bfloat16, in.num_classes, in.width};
}

// exp(logit - maximum), also of infinities.
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
