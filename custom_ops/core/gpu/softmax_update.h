// SPDX-License-Identifier: Apache-2.0
//
// core/softmax_update.h on a GPU: three products per block of classes by cuBLAS, and between them a
// kernel that turns logits into gradients while they are in the second-level cache.

#ifndef TFX_LARGEOUT_CORE_GPU_SOFTMAX_UPDATE_H_
#define TFX_LARGEOUT_CORE_GPU_SOFTMAX_UPDATE_H_

#include <cstdint>

#include "core/gpu/class_blocks.h"
#include "core/gpu/error.h"
#include "core/gpu/products.h"
#include "core/gpu/row_rule.h"
#include "core/softmax_update.h"

struct CUstream_st;

namespace tfx::core::gpu {

struct SoftmaxUpdateInputs {
  LayerWeights weights;
  LayerRows rows;      // the layer's
  SoftmaxBatch batch;  // `rounds` is not used
  RowRule rule;
  bool updates;         // otherwise only the gradient of h
  Precision precision;  // of the products; with kBfloat16 dL/do is rounded, too
  int64_t numbers_at_a_time = kNumbersAtATime;
};

// Bytes of device memory that SoftmaxUpdate needs, aligned to 16. About 32 MiB of logits and as
// much for gradients of W, or 16 KiB per example and 16 D KiB if that is more.
int64_t SoftmaxUpdateScratchBytes(const SoftmaxUpdateInputs& inputs);

// Starts core::SoftmaxUpdate on a stream, with arrays on the device. The rows of a block change
// after its part of hidden_gradient [B, D] is computed. Returns an error.
//
// A label without a row counts as padding. The result does not depend on the order of threads.
// Numbers that are not finite would reach the weights: check them first.
//
// REQUIRES: as core::SoftmaxUpdate, except for the labels.
Error SoftmaxUpdate(CUstream_st* stream, const SoftmaxUpdateInputs& inputs, void* scratch,
                    float* hidden_gradient);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_SOFTMAX_UPDATE_H_
