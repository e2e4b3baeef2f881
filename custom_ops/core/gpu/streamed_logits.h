// SPDX-License-Identifier: Apache-2.0
//
// core/streamed_logits.h on a GPU: products of a block of classes by cuBLAS, and one kernel that
// reads the results from them while they are in the second-level cache.

#ifndef TFX_LARGEOUT_CORE_GPU_STREAMED_LOGITS_H_
#define TFX_LARGEOUT_CORE_GPU_STREAMED_LOGITS_H_

#include <cstdint>

#include "core/gpu/error.h"
#include "core/gpu/products.h"
#include "core/streamed_logits.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The largest k for the best classes.
constexpr int64_t kMostBest = 1024;

// Bytes of device memory that StreamedLogits needs besides inputs and outputs, aligned to 16. About
// 32 MiB of logits, or 16 KiB per example if that is more; as much, or 16 D KiB, for the rows of a
// block of classes in float if W is bfloat16; and 8 (k + K) + 12 bytes per example and chunk, with
// at most 2^11 / B chunks per block of classes, or one.
int64_t StreamedLogitsScratchBytes(const StreamedLogitsInputs& inputs, Precision precision);

// Starts core::StreamedLogits on a stream, with arrays on the device. Returns an error; then
// outputs are undefined.
//
// A label outside of [-1, num_classes) has no row, like a label of another shard. Ids and ranks
// don't depend on the order of threads; sums over classes are float32 in chunks of 4,096, and
// float64 over chunks.
//
// Products have `precision`, float32 or TF32; target logits are always float32.
//
// REQUIRES: as core::StreamedLogits; neither rounded nor kept; k <= kMostBest; K < 2^16.
Error StreamedLogits(CUstream_st* stream, const StreamedLogitsInputs& inputs, Precision precision,
                     void* scratch, const StreamedLogitsOutputs& outputs);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_STREAMED_LOGITS_H_
