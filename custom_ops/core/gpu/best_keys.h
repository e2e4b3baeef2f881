// SPDX-License-Identifier: Apache-2.0
//
// The best k keys that the threads of a block on a GPU find.
//
// A key is one number made of a logit and its row: larger for a larger logit, and for equal logits
// larger for a lower row. NaN counts as -infinity, and differs from it in the lowest bit.

#ifndef TFX_LARGEOUT_CORE_GPU_BEST_KEYS_H_
#define TFX_LARGEOUT_CORE_GPU_BEST_KEYS_H_

#include <cstdint>

#include "core/gpu/block_reduction.h"

namespace tfx::core::gpu {

// NaN counts as -infinity.
__device__ inline float NumberOf(float logit) { return isnan(logit) ? -INFINITY : logit; }

// An integer with the order of NumberOf, with -0 = 0.
__device__ inline uint32_t OrderOf(float logit) {
  const uint32_t bits = __float_as_uint(NumberOf(logit) + 0.f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

__device__ inline uint64_t KeyOf(float logit, int64_t row) {
  const auto order = static_cast<uint64_t>(OrderOf(logit));
  const auto falling = static_cast<uint64_t>(0x7fffffff - row);
  return order << 32 | falling << 1 | (isnan(logit) ? 1 : 0);
}

__device__ inline int64_t RowOf(uint64_t key) {
  return 0x7fffffff - static_cast<int64_t>(key >> 1 & 0x7fffffff);
}

__device__ inline float LogitOf(uint64_t key) {
  if ((key & 1) != 0) return NAN;
  const auto order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(order >> 31 != 0 ? order & 0x7fffffffu : ~order);
}

// The number of keys BestKeys has room for: a power of 2, at least k + kThreads.
inline int64_t SizeOfBestKeys(int64_t k) {
  int64_t size = 2 * kThreads;
  while (size < k + 2 * kThreads) size *= 2;
  return size;
}

// First the best k, falling; then the keys offered since the last sort. A key of 0 means none. All
// threads of a block must call each method.
class BestKeys {
 public:
  // `keys`: shared, SizeOfBestKeys(k). `best`: k to begin with, or null.
  __device__ BestKeys(uint64_t* keys, int64_t size, int64_t k, unsigned* count,
                      const uint64_t* best)
      : keys_(keys), size_(size), k_(k), count_(count) {
    for (int64_t i = threadIdx.x; i < k; i += kThreads) keys[i] = best == nullptr ? 0 : best[i];
    if (threadIdx.x == 0) *count = 0;
    __syncthreads();
  }

  __device__ uint64_t operator[](int64_t i) const { return keys_[i]; }
  __device__ bool Beats(uint64_t key) const { return key > keys_[k_ - 1]; }
  // Whether this many keys fit right after a sort.
  __device__ bool Fit(unsigned more) const { return k_ + more <= size_; }

  // One key per thread; keys that don't beat the best are dropped. REQUIRES: there is room.
  __device__ void Offer(uint64_t key) {
    if (Beats(key)) keys_[k_ + atomicAdd(count_, 1u)] = key;
  }

  // Makes room for kThreads more.
  __device__ void MakeRoom() {
    __syncthreads();
    const bool has_room = Fit(*count_ + kThreads);
    __syncthreads();
    if (!has_room) Sort();
  }

  __device__ void Sort() {
    __syncthreads();
    const int64_t n = k_ + *count_;
    int64_t size = 1;
    while (size < n) size *= 2;
    for (int64_t i = n + threadIdx.x; i < size; i += kThreads) keys_[i] = 0;
    __syncthreads();
    if (threadIdx.x == 0) *count_ = 0;
    for (int64_t run = 2; run <= size; run *= 2) {  // a bitonic sort
      for (int64_t stride = run / 2; stride > 0; stride /= 2) {
        for (int64_t i = threadIdx.x; i < size / 2; i += kThreads) Order(i, run, stride);
        __syncthreads();
      }
    }
  }

 private:
  __device__ void Order(int64_t i, int64_t run, int64_t stride) {
    const int64_t low = 2 * i - (i & (stride - 1)), high = low + stride;
    const uint64_t a = keys_[low], b = keys_[high];
    const bool is_falling = (low & run) == 0;
    if (is_falling ? a >= b : a <= b) return;
    keys_[low] = b;
    keys_[high] = a;
  }

  uint64_t* keys_;
  int64_t size_, k_;
  unsigned* count_;
};

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_BEST_KEYS_H_
