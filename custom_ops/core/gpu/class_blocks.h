// SPDX-License-Identifier: Apache-2.0
//
// The blocks of classes that all passes over a layer on a GPU take one after another: so small that
// their logits stay in the second-level cache, if the batch allows it.

#ifndef TFX_LARGEOUT_CORE_GPU_CLASS_BLOCKS_H_
#define TFX_LARGEOUT_CORE_GPU_CLASS_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "core/candidate_batch.h"
#include "core/gpu/error.h"
#include "core/gpu/products.h"
#include "core/gpu/scratch.h"

namespace tfx::core::gpu {

constexpr int64_t kChunk = 4096;              // classes that a block of threads looks at
constexpr int64_t kNumbersAtATime = 1 << 23;  // 32 MiB of floats: they stay in the cache

// How many classes make up a block: a multiple of kChunk, or all. Of each class there are some
// numbers, of which about `most` are there at a time; not below kChunk classes.
inline int64_t ClassesAtATime(int64_t num_classes, int64_t numbers_of_class, int64_t most) {
  const int64_t chunks = most / (kChunk * std::max<int64_t>(1, numbers_of_class));
  return std::min(std::max<int64_t>(1, chunks) * kChunk, num_classes);
}

// Whether W is copied because it is not in memory as it is multiplied.
inline bool CopiesKernel(const LayerWeights& weights, Precision precision) {
  return weights.is_bfloat16 != (precision == Precision::kBfloat16);
}

// How many numbers of a class ClassBlocks and its logits have: B of them, or D of the copy.
inline int64_t NumbersOfClass(const LayerWeights& weights, int64_t batch, Precision precision) {
  return CopiesKernel(weights, precision) ? std::max(batch, weights.width) : batch;
}

// W and h as factors. They are copied, W block by block, where they are not in memory as they are
// multiplied: rounded to bfloat16 for Precision::kBfloat16, else float.
class ClassBlocks {
 public:
  // `hidden`: h, [batch, D]. Takes memory for blocks of `size` classes.
  ClassBlocks(const LayerWeights& weights, const float* hidden, int64_t batch, int64_t size,
              Precision precision, Scratch* scratch);

  // To be called once, first. As all methods, returns what is wrong.
  Error Begin(CUstream_st* stream);

  // o = h W^T for classes [begin, begin + columns), without biases: [batch, columns].
  Error Logits(CUstream_st* stream, int64_t begin, int64_t columns, float* o);

  // As they are multiplied: h [batch, D], and W of the classes of the last call of Logits.
  const void* hidden() const { return hidden_; }
  const void* kernel() const { return kernel_; }

 private:
  const LayerWeights weights_;
  const float* const given_hidden_;
  const int64_t batch_;
  const Precision precision_;
  const bool copies_kernel_;
  void* kernel_copy_;
  uint16_t* hidden_copy_;
  const void* hidden_;
  const void* kernel_ = nullptr;
};

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CLASS_BLOCKS_H_
