// SPDX-License-Identifier: Apache-2.0
//
// core/streamed_logits.h on a GPU: products of a block of classes by cuBLAS, and one kernel that
// takes what is needed out of them while they are in the second-level cache.

#ifndef TFX_LARGEOUT_CORE_GPU_STREAMED_LOGITS_H_
#define TFX_LARGEOUT_CORE_GPU_STREAMED_LOGITS_H_

#include <cstdint>

#include "core/gpu/error.h"
#include "core/gpu/products.h"
#include "core/streamed_logits.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The most classes of which the best may be asked for.
constexpr int64_t kMostBest = 1024;

// Bytes of device memory that StreamedLogits needs beside inputs and outputs, aligned to 16. About
// 32 MiB of logits, or 16 KiB an example if that is more; as much, or 16 D KiB, for the rows of a
// block of classes in float if W is bfloat16; and 8 (k + K) + 12 bytes an example and chunk, of
// which a block of classes has at most 2^11 / B, or one.
int64_t StreamedLogitsScratchBytes(const StreamedLogitsInputs& inputs, Precision precision);

// Begins on a stream what core::StreamedLogits does, with arrays on the device. Returns what
// is wrong: then outputs are undefined.
//
// A label outside of [-1, num_classes) has no row, as one of another shard. Ids and ranks depend on
// no order in which threads run; sums over classes are of float64 over chunks of 4,096 in float32.
//
// Products are of `precision`, float32 or TF32, but for those of target logits: these are float32.
//
// REQUIRES: what core::StreamedLogits does; neither rounded nor kept; k <= kMostBest; K < 2^16.
Error StreamedLogits(CUstream_st* stream, const StreamedLogitsInputs& inputs, Precision precision,
                     void* scratch, const StreamedLogitsOutputs& outputs);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_STREAMED_LOGITS_H_
