// SPDX-License-Identifier: Apache-2.0
//
// The partition function over all classes and a few entries of the softmax, on a GPU:
// core::StreamedLogits with a core::KeepRule. cuBLAS computes the products of a block of classes,
// and one kernel sums up and keeps entries while they are in the second-level cache.
//
// Entries are kept by a lower bound of Z while the pass runs; at the end the excess is dropped, as
// in core/kept_logits.h. There is room for some entries per example. In the very unlikely case that
// they don't fit, another pass with more room follows; Z is then known.

#ifndef TFX_LARGEOUT_CORE_GPU_SOFTMAX_SELECTION_H_
#define TFX_LARGEOUT_CORE_GPU_SOFTMAX_SELECTION_H_

#include <cstdint>

#include "core/gpu/class_blocks.h"
#include "core/gpu/error.h"
#include "core/gpu/products.h"
#include "core/streamed_logits.h"

struct CUstream_st;

namespace tfx::core::gpu {

struct SoftmaxSelectionInputs {
  StreamedLogitsInputs layer;  // on the device, `keep` on the host, its seed is not used
  const int64_t* seed;         // [2], on the device
  Precision precision;         // of the products
  int64_t numbers_at_a_time = kNumbersAtATime;
};

// The initial room for entries per example; 0 if none are kept.
int64_t RoomForEntries(const SoftmaxSelectionInputs& inputs);

// Bytes of device memory for passes, aligned to 16: for the logits of a block of classes about 32
// MiB, or 16 KiB per example if that is more; for a copy of its rows, if products need another
// type, as much, or 16 D KiB; and 16 bytes per entry, with `room` entries per example.
int64_t SoftmaxSelectionScratchBytes(const SoftmaxSelectionInputs& inputs, int64_t room);

// The sizes found by a pass, over all examples; on the device.
struct SoftmaxSelectionSizes {
  int64_t most_kept;  // per example
  int64_t room;       // sufficient room
};

struct SoftmaxSelectionOutputs {
  float* logsumexp;              // [B]
  float* target_logits;          // [B, K]
  SoftmaxSelectionSizes* sizes;  // if entries are kept
};

// Starts a pass over all classes on a stream. If sizes->room is above `room` afterwards, another
// pass with this room must follow, and so on. A later pass reads the logsumexp of the first one
// from its outputs.
//
// A label outside of [-1, num_classes) counts as a label without a row.
//
// Returns an error.
//
// REQUIRES: as core::StreamedLogits; k = 0.
Error SoftmaxSelection(CUstream_st* stream, const SoftmaxSelectionInputs& inputs, int64_t room,
                       bool is_first, void* scratch, const SoftmaxSelectionOutputs& outputs);

// The entries, [B, S']: by rising class, then padding.
struct SoftmaxSelectionEntries {
  int64_t size;  // S', sizes->most_kept
  int64_t* ids;
  float *weights, *logits, *keys;
};

// Starts to write the entries of a pass with enough room, with the same `room` and `scratch`.
Error WriteEntries(CUstream_st* stream, const SoftmaxSelectionInputs& inputs, int64_t room,
                   void* scratch, const float* logsumexp, const SoftmaxSelectionEntries& entries);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_SOFTMAX_SELECTION_H_
