// SPDX-License-Identifier: Apache-2.0
//
// Statistics of the logits o = W h + b of all classes, in one pass over W, without building o.

#ifndef TFX_LARGEOUT_CORE_STREAMED_LOGITS_H_
#define TFX_LARGEOUT_CORE_STREAMED_LOGITS_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/class_filter.h"
#include "core/class_shard.h"
#include "core/execution.h"
#include "core/logit_keeper.h"

namespace tfx::core {

struct StreamedLogitsInputs {
  const float* hidden;    // h: [B, D]
  LayerWeights weights;   // the rows of W [C, D] on this worker, and b
  bool rounds;            // rounds W and h to bfloat16, for products summed in float
  const int64_t* labels;  // [B, K], padded with -1
  int64_t batch;          // B
  int64_t num_labels;     // K
  int64_t k;
  ClassShard shard;            // the classes of the rows of W
  const float* target_scores;  // [B, K]: logits of labels, if computed by shards; or null
  const KeepRule* keep;        // the selection of softmax entries; or null: none
  const ClassFilter* filter;   // the classes that may be among the best k; or null: all
};

struct StreamedLogitsOutputs {
  float* logsumexp;         // [B]
  float* target_logits;     // [B, K]
  int64_t* target_ranks;    // [B, K]: among these classes; or null
  float* top_scores;        // [B, k]
  int64_t* top_ids;         // [B, k]
  KeptProbabilities* kept;  // if `keep` is given: all except labels
};

// Fills the outputs. The result depends neither on the number of workers nor on their order.
//
// With a shard of classes, ids and ties refer to the whole layer. The logit of another shard's
// label is 0, and its rank is -1 unless target scores are given. With target scores, ranks are the
// number of this shard's classes that rank above the scores, and add up over shards; a label never
// ranks above itself, for any rounding of its score.
//
// If fewer than k classes may be among the best, -infinity and -1 follow. The logsumexp is always
// over all classes.
//
// NaN: the logsumexp is NaN if a logit of the example is, else +infinity if one is; it is -infinity
// if all are, or if C = 0. For ranks and the best k, a NaN logit counts as -infinity.
//
// Cost: 2 B C D FLOP; W is read from memory once; memory
// O(B (D + E + num_workers (K + k)) + num_chunks B), with at most 256 chunks and B num_chunks of
// about 10^6.
//
// REQUIRES: 0 <= k <= C < 2^31; labels are at least -1; shard.num_rows is C.
void StreamedLogits(const StreamedLogitsInputs& inputs, const Execution& execution,
                    const StreamedLogitsOutputs& outputs);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_STREAMED_LOGITS_H_
