// SPDX-License-Identifier: Apache-2.0
//
// The blocks of classes in passes over a layer on a GPU: so small that their logits stay in the
// second-level cache, if the batch allows it.

#ifndef TFX_LARGEOUT_CORE_GPU_CLASS_BLOCKS_H_
#define TFX_LARGEOUT_CORE_GPU_CLASS_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "core/candidate_batch.h"
#include "core/gpu/error.h"
#include "core/gpu/products.h"
#include "core/gpu/scratch.h"

namespace tfx::core::gpu {

constexpr int64_t kChunk = 4096;              // classes per block of threads
constexpr int64_t kNumbersAtATime = 1 << 23;  // 32 MiB of floats: they stay in the cache

// The number of classes in a block: a multiple of kChunk, or all. It limits the numbers in memory
// to about `most`, with at least kChunk classes.
inline int64_t ClassesAtATime(int64_t num_classes, int64_t numbers_of_class, int64_t most) {
  const int64_t chunks = most / (kChunk * std::max<int64_t>(1, numbers_of_class));
  return std::min(std::max<int64_t>(1, chunks) * kChunk, num_classes);
}

// Whether W is copied because products need another type.
inline bool CopiesKernel(const LayerWeights& weights, Precision precision) {
  return weights.is_bfloat16 != (precision == Precision::kBfloat16);
}

// The numbers per class in ClassBlocks and its logits: B for logits, or D for the copy.
inline int64_t NumbersOfClass(const LayerWeights& weights, int64_t batch, Precision precision) {
  return CopiesKernel(weights, precision) ? std::max(batch, weights.width) : batch;
}

// W and h as factors. They are copied (W block by block) if products need another type: bfloat16
// for Precision::kBfloat16, else float.
class ClassBlocks {
 public:
  // `hidden`: h, [batch, D]. Allocates memory for blocks of `size` classes.
  ClassBlocks(const LayerWeights& weights, const float* hidden, int64_t batch, int64_t size,
              Precision precision, Scratch* scratch);

  // Must be called first, once. Like all methods, returns an error.
  Error Begin(CUstream_st* stream);

  // o = h W^T for classes [begin, begin + columns), without biases: [batch, columns].
  Error Logits(CUstream_st* stream, int64_t begin, int64_t columns, float* o);

  // The factors: h [batch, D], and W for the classes of the last call of Logits.
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
