// SPDX-License-Identifier: Apache-2.0
//
// Sums and maxima over the threads of a block on a GPU, in an order that is always the same.

#ifndef TFX_LARGEOUT_CORE_GPU_BLOCK_REDUCTION_H_
#define TFX_LARGEOUT_CORE_GPU_BLOCK_REDUCTION_H_

#include "core/gpu/cuda_on_cpu.h"

namespace tfx::core::gpu {

constexpr int kThreads = 256;  // of a block
constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Min {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

// Returns to all threads of a warp what their values combine to.
template <typename T, typename Combine>
__device__ T OfWarp(T value, Combine combine) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    value = combine(value, __shfl_xor_sync(~0u, value, mask));
  }
  return value;
}

// The same for all kThreads threads of a block. `shared` has room for kWarps values of 8 bytes.
template <typename T, typename Combine>
__device__ T OfBlock(T value, Combine combine, void* shared) {
  T* of_warps = static_cast<T*>(shared);
  value = OfWarp(value, combine);
  __syncthreads();  // the last reduction has been read
  if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = of_warps[0];
  for (int warp = 1; warp < kWarps; ++warp) value = combine(value, of_warps[warp]);
  return value;
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_BLOCK_REDUCTION_H_
