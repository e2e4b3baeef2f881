// SPDX-License-Identifier: Apache-2.0
//
// The partition function over all classes and a few entries of the softmax, on a GPU: what
// core::StreamedLogits does with a core::KeepRule. Products of a block of classes by cuBLAS, and
// one kernel that adds up and keeps what is needed while they are in the second-level cache.
//
// Entries are kept by a lower bound of Z while the pass runs, and thinned out in the end, as
// core/kept_logits.h says. There is room for some entries an example. Only if they were more, which
// is next to impossible, are more sweeps needed, each with the room that the one before lacked; by
// then Z is known.

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
  StreamedLogitsInputs layer;  // on the device, `keep` on the host, its seed not looked at
  const int64_t* seed;         // [2], on the device
  Precision precision;         // of the products
  int64_t numbers_at_a_time = kNumbersAtATime;
};

// How many entries of an example there is room for at first; 0 if none is to be kept.
int64_t RoomForEntries(const SoftmaxSelectionInputs& inputs);

// Bytes of device memory that sweeps need, aligned to 16: for the logits of a block of classes,
// about 32 MiB, or 16 KiB an example if that is more; for a copy of its rows where W is not in the
// type that is multiplied, as much, or 16 D KiB; and for the entries, 16 bytes each of `room` an
// example.
int64_t SoftmaxSelectionScratchBytes(const SoftmaxSelectionInputs& inputs, int64_t room);

// What is known after a sweep, over all examples; on the device.
struct SoftmaxSelectionSizes {
  int64_t most_kept;  // of an example
  int64_t room;       // that would have been enough
};

struct SoftmaxSelectionOutputs {
  float* logsumexp;              // [B]
  float* target_logits;          // [B, K]
  SoftmaxSelectionSizes* sizes;  // where entries are kept
};

// Begins a sweep over all classes on a stream. If sizes->room is above `room` then, it is to be
// followed by another, with so much room, and so on: a sweep that is not the first takes the
// logsumexp from its outputs, as the first left it.
//
// A label that is outside of [-1, num_classes) counts as one without a row here.
//
// Returns what is wrong.
//
// REQUIRES: what core::StreamedLogits does; k = 0.
Error SoftmaxSelection(CUstream_st* stream, const SoftmaxSelectionInputs& inputs, int64_t room,
                       bool is_first, void* scratch, const SoftmaxSelectionOutputs& outputs);

// The entries, [B, S']: by rising class, then padding.
struct SoftmaxSelectionEntries {
  int64_t size;  // S', sizes->most_kept
  int64_t* ids;
  float *weights, *logits, *keys;
};

// Begins to write what a sweep with enough room has kept, with the same `room` and `scratch`.
Error WriteEntries(CUstream_st* stream, const SoftmaxSelectionInputs& inputs, int64_t room,
                   void* scratch, const float* logsumexp, const SoftmaxSelectionEntries& entries);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_SOFTMAX_SELECTION_H_
