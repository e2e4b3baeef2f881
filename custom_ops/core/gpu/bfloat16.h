// SPDX-License-Identifier: Apache-2.0
//
// Numbers on a GPU that are double, float or bfloat16, the latter as its bits.

#ifndef TFX_LARGEOUT_CORE_GPU_BFLOAT16_H_
#define TFX_LARGEOUT_CORE_GPU_BFLOAT16_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/gpu/cuda_on_cpu.h"

namespace tfx::core::gpu {

__device__ inline double ToNumber(double x) { return x; }
__device__ inline float ToNumber(float x) { return x; }
__device__ inline float ToNumber(uint16_t x) { return __uint_as_float(uint32_t{x} << 16); }

__device__ inline void Set(double* to, double x) { *to = x; }
__device__ inline void Set(float* to, float x) { *to = x; }
// To the nearest, ties to even.
__device__ inline void Set(uint16_t* to, float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  *to = static_cast<uint16_t>(isnan(x) ? 0x7fc0 : rounded);
}

// Number i of an array of either type.
__device__ inline float NumberAt(const void* numbers, bool is_bfloat16, int64_t i) {
  return is_bfloat16 ? ToNumber(static_cast<const uint16_t*>(numbers)[i])
                     : static_cast<const float*>(numbers)[i];
}

// Column d of a row of W.
__device__ inline float KernelAt(const LayerWeights& weights, int64_t row, int64_t d) {
  return NumberAt(weights.kernel, weights.is_bfloat16, row * weights.width + d);
}

// 0 without a bias.
__device__ inline float BiasOf(const LayerWeights& weights, int64_t row) {
  return weights.bias == nullptr ? 0 : NumberAt(weights.bias, weights.is_bfloat16, row);
}

__device__ inline void SetNumber(void* numbers, bool is_bfloat16, int64_t i, float x) {
  if (is_bfloat16) {
    Set(static_cast<uint16_t*>(numbers) + i, x);
  } else {
    static_cast<float*>(numbers)[i] = x;
  }
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_BFLOAT16_H_
