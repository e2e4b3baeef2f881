// SPDX-License-Identifier: Apache-2.0
//
// The logits of an example for a chunk of classes on a GPU, in the registers of a block of threads.

#ifndef TFX_LARGEOUT_CORE_GPU_OWN_LOGITS_H_
#define TFX_LARGEOUT_CORE_GPU_OWN_LOGITS_H_

#include <cstdint>

#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/class_blocks.h"
#include "core/gpu/streamed_softmax.h"

namespace tfx::core::gpu {

// The logits of one of kThreads threads. A warp has consecutive rows: number j of a thread is that
// of row Row(0) + kWarpSize j. A row behind the last one has the logit -infinity.
class OwnLogits {
 public:
  static constexpr int kCount = kChunk / kThreads;

  // Of rows [begin, end), at most kChunk. `logits`: theirs, without biases.
  __device__ OwnLogits(const LayerWeights& weights, const float* logits, int64_t begin, int64_t end)
      : weights_(weights) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int first = warp * kCount * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize;
    products_ = logits + first;
    first_row_ = static_cast<int>(begin) + first;
    num_left_ = static_cast<int>(end - begin) - first;
    for (int j = 0; j < kCount; ++j) {
      logits_[j] = IsThere(j) ? products_[j * kWarpSize] : -INFINITY;
    }
    if (weights.bias != nullptr && weights.is_bfloat16) {
      Add(static_cast<const uint16_t*>(weights.bias) + first_row_);
    } else if (weights.bias != nullptr) {
      Add(static_cast<const float*>(weights.bias) + first_row_);
    }
    for (float logit : logits_) maximum_ = fmaxf(maximum_, logit);  // ignores NaN
  }

  // For loops with constant bounds: registers have no index at run time.
  __device__ float operator[](int j) const { return logits_[j]; }
  // The same, from memory.
  __device__ float FromMemory(int j) const {
    return IsThere(j) ? products_[j * kWarpSize] + BiasOf(weights_, Row(j)) : -INFINITY;
  }
  __device__ int Row(int j) const { return first_row_ + j * kWarpSize; }
  __device__ bool IsThere(int j) const { return j * kWarpSize < num_left_; }
  // Of the thread's logits that are numbers.
  __device__ float maximum() const { return maximum_; }

 private:
  // Without a branch for each logit, so that all loads are under way at once.
  template <typename T>
  __device__ void Add(const T* biases) {
    for (int j = 0; j < kCount; ++j) {
      logits_[j] += IsThere(j) ? ToNumber(biases[j * kWarpSize]) : 0;
    }
  }

  const LayerWeights& weights_;
  const float* products_;
  float logits_[kCount];
  float maximum_ = -INFINITY;
  int first_row_, num_left_;
};

// Returns the softmax's terms of all own logits to all threads of a block. `shared` has room for
// kWarps terms.
__device__ inline SoftmaxTerms TermsOfBlock(const OwnLogits& own, SoftmaxTerms* shared) {
  SoftmaxTerms terms;
  terms.maximum = OfWarp(own.maximum(), Max());
  float sum = 0;
  for (int j = 0; j < OwnLogits::kCount; ++j) sum += ExpBelow(own[j], terms.maximum);
  terms.sum = OfWarp(sum, Sum());
  __syncthreads();  // the last terms have been read
  if (threadIdx.x % kWarpSize == 0) shared[threadIdx.x / kWarpSize] = terms;
  __syncthreads();
  const SoftmaxTerms of_warp = shared[threadIdx.x % kWarps];
  terms.maximum = OfWarp<kWarps>(of_warp.maximum, Max());
  terms.sum = OfWarp<kWarps>(of_warp.sum * ExpBelow(of_warp.maximum, terms.maximum), Sum());
  return terms;
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_OWN_LOGITS_H_
