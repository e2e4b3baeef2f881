// SPDX-License-Identifier: Apache-2.0
//
// The best k classes of the lists near h: an inverted file. The rows of W lie in lists around
// centers, and a query looks into the few lists whose centers are closest. Within them, rows of
// whole numbers and bounds leave a few classes over, which get their logits from W: see
// core/bounded_top_k.h.

#ifndef TFX_LARGEOUT_CORE_PROBED_TOP_K_H_
#define TFX_LARGEOUT_CORE_PROBED_TOP_K_H_

#include <cstdint>

#include "core/bounded_logits.h"

namespace tfx::core {

// Sets the best k among the classes of the `num_probed` closest lists; where these have fewer,
// -infinity and -1 follow. Lists that are as close: the lower one first. Classes with the same
// logit: the lower id first.
//
// StreamedLogits does the work, over all classes, where h has a NaN or is longer than 2^50; where a
// logit is out of its bounds, as it is for another W; and where ends don't rise, or have no room
// for all classes. Classes out of range are taken for none.
//
// Cost: for each example L D + (classes of its lists) D multiplications, on one worker, which reads
// D + 12 bytes a class. Memory: 20 bytes for each class of these lists, for as many examples at a
// time as 64 MiB have room for, at least one.
//
// REQUIRES: as BoundedTopK; bounded.classes are given; 1 <= num_probed <= L.
void ProbedTopK(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                const RowLists& lists, int64_t num_probed, const Execution& execution,
                const BoundedTopKOutputs& outputs);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_PROBED_TOP_K_H_
