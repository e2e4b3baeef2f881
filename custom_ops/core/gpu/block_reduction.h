// SPDX-License-Identifier: Apache-2.0
//
// Sums and maxima over the threads of a block on a GPU, in a fixed order.

#ifndef TFX_LARGEOUT_CORE_GPU_BLOCK_REDUCTION_H_
#define TFX_LARGEOUT_CORE_GPU_BLOCK_REDUCTION_H_

#include <cstdint>

#include "core/gpu/cuda_on_cpu.h"

namespace tfx::core::gpu {

constexpr int kThreads = 256;  // per block
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

struct Or {
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a | b; }
};

// Returns the combination of their values to all threads of a warp, or of kLanes lanes in a row.
template <int kLanes = kWarpSize, typename T, typename Combine>
__device__ T OfWarp(T value, Combine combine) {
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    value = combine(value, __shfl_xor_sync(~0u, value, mask));
  }
  return value;
}

// Returns the pointer of a lane to all threads of a warp.
__device__ inline const float* OfLane(const float* pointer, int lane) {
  const auto bits = reinterpret_cast<unsigned long long>(pointer);
  return reinterpret_cast<const float*>(__shfl_sync(~0u, bits, lane));
}

// As OfWarp, for all threads of a block, which consists of whole warps, at most kWarps. `shared`
// has room for kWarps values of 8 bytes.
template <typename T, typename Combine>
__device__ T OfBlock(T value, Combine combine, void* shared) {
  T* of_warps = static_cast<T*>(shared);
  value = OfWarp(value, combine);
  __syncthreads();  // the last reduction has been read
  if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = of_warps[0];
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  for (int warp = 1; warp < num_warps; ++warp) value = combine(value, of_warps[warp]);
  return value;
}

// Returns to each thread of the first of kWarps warps the sum of the values of its lane. `shared`
// has room for kThreads values.
__device__ inline float SumOfLane(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return 0;
  for (int warp = 1; warp < kWarps; ++warp) value += shared[warp * kWarpSize + threadIdx.x];
  return value;
}

// Returns x . y to all of kThreads threads. `shared` has room for kWarps values.
template <typename T>
__device__ double Dot(const double* x, const T* y, int64_t n, void* shared) {
  double sum = 0;
  for (int64_t d = threadIdx.x; d < n; d += kThreads) sum += x[d] * y[d];
  return OfBlock(sum, Sum(), shared);
}

// Returns to each thread of a warp the inclusive prefix sum of values.
__device__ inline uint32_t SumUpTo(uint32_t value) {
  const unsigned lane = threadIdx.x % kWarpSize;
  for (unsigned delta = 1; delta < kWarpSize; delta *= 2) {
    const uint32_t before = __shfl_up_sync(~0u, value, delta);
    if (lane >= delta) value += before;
  }
  return value;
}

// Returns to each of kThreads threads the exclusive prefix sum of values, and the total. `shared`
// has room for kWarps values.
__device__ inline uint32_t SumBefore(uint32_t value, uint32_t* shared, uint32_t* total) {
  const unsigned warp = threadIdx.x / kWarpSize;
  const uint32_t up_to = SumUpTo(value);
  __syncthreads();  // the last sums have been read
  if (threadIdx.x % kWarpSize == kWarpSize - 1) shared[warp] = up_to;
  __syncthreads();
  uint32_t of_warps = 0;
  *total = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w < warp) of_warps += shared[w];
    *total += shared[w];
  }
  return of_warps + up_to - value;
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_BLOCK_REDUCTION_H_
