// SPDX-License-Identifier: Apache-2.0
//
// The part of streamed_logits that is compiled once per instruction set, and the plain structs that
// it shares with core/streamed_logits.cc.
//
// A panel has `panel_lanes` examples; the last one may be narrower. Arrays "by lane" have
// num_panels
// * panel_lanes entries; lanes without an example are computed and ignored.

#ifndef TFX_LARGEOUT_CORE_STREAMED_LOGITS_ISA_H_
#define TFX_LARGEOUT_CORE_STREAMED_LOGITS_ISA_H_

#include <stdint.h>

#include "core/class_filter.h"
#include "core/for_sets.h"
#include "core/kept_logits.h"
#include "core/logit_operands.h"
#include "core/top_k_heap.h"

namespace tfx::core {

struct Panel : HiddenPanel {
  int64_t num_slots;          // the largest number of labels of an example in the panel
  const float* target_keys;   // [K, lanes]: order keys of the target logits; +inf: none
  const int32_t* target_ids;  // [K, lanes]: the row of the label, or the next; -1: none
  const uint32_t* keys;       // [lanes]: random, one per example; null if no logits are kept
};

// The inputs of all workers.
struct StreamedLogitsPass {
  const Panel* panels;
  int64_t num_panels;
  LogitRows layer;
  int64_t num_labels;  // K
  int64_t k;
  bool keeps;               // whether logits are kept
  float epsilon;            // see core/kept_logits.h
  int64_t first_class;      // the class of row 0
  int64_t class_stride;     // from row to row
  const RowFilter* filter;  // or null
};

// The results of one worker over its chunks of classes, in rising order.
struct StreamedLogitsWorker {
  int64_t classes_seen;  // in earlier chunks
  int64_t skipped;       // classes below the current chunk that belong to other workers
  int32_t* counts;       // [lanes, K] by panel as [K, lanes]: classes above each target
  ScoredClass* heaps;    // [B, k]
  float* thresholds;     // by lane: order key of the worst class in a full heap
  int64_t* sizes;        // by lane, of heaps; null without a filter
  uint32_t* unfilled;    // by vector of lanes: lanes whose heap has room; likewise
  float* lost;           // by lane: rounding error of the sum of the chunk
  float* rows;           // [rows_of_block, D]: rows that are converted for products
  float* biases;         // [rows_of_block]
  // If logits are kept:
  const float* bounds;   // by lane: a lower bound of log Z
  uint32_t* class_keys;  // [rows_of_block]: random, one per class
  KeptLogits* kept;
};

// sum_c exp(o_c) over a chunk of classes is sum * exp(min(max, FLT_MAX)); NaN if any logit is.
struct ChunkSums {
  float* max;  // by lane
  float* sum;  // by lane
};

struct StreamedLogitsIsa {
  int32_t vector_lanes;
  int32_t panel_lanes;

  // Rows of W that are processed at a time.
  int64_t (*rows_of_block)(int64_t width);

  // Fills `to`, with room for [D, lanes] floats, with the transposed rows of a panel, `rounded` or
  // not, and 0 beyond its examples.
  void (*pack_panel)(const HiddenPanel& panel, int64_t width, bool rounded, float* to);

  // The logit of class `id` for one lane of a panel, bit for bit as in `chunk`.
  // REQUIRES: 0 <= id < C; scratch has room for D floats.
  float (*target_logit)(const StreamedLogitsPass& pass, const Panel& panel, int32_t lane,
                        int64_t id, float* scratch);

  // Adds classes [begin, end) to the results of `worker` and sets `sums` to the sums of the chunk.
  // REQUIRES: 0 <= begin < end <= C; begin is above all classes that the worker has seen.
  void (*chunk)(const StreamedLogitsPass& pass, int64_t begin, int64_t end,
                StreamedLogitsWorker* worker, ChunkSums sums);
};

TFX_FOR_BFLOAT16_SETS(extern const StreamedLogitsIsa kStreamedLogits)

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_STREAMED_LOGITS_ISA_H_
