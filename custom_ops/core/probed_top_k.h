// SPDX-License-Identifier: Apache-2.0
//
// The best k classes of the lists near h: an inverted file. The rows of W are in lists around
// centers, and a query reads the few lists with the closest centers. Within them, integer rows with
// bounds rule out most classes; the logits of the others are computed from W: see
// core/bounded_top_k.h.

#ifndef TFX_LARGEOUT_CORE_PROBED_TOP_K_H_
#define TFX_LARGEOUT_CORE_PROBED_TOP_K_H_

#include <cstdint>

#include "core/bounded_logits.h"

namespace tfx::core {

// Sets the best k among the classes of the `num_probed` closest lists, padded with -infinity and
// -1. Ties go to the lower list, and to the lower id.
//
// StreamedLogits is called instead, over all classes, if h has a NaN or is longer than 2^50; if a
// logit is out of its bounds, as for another W; and if ends don't rise, or have no room for all
// classes. Classes out of range are ignored.
//
// Cost: per example L D + (classes of its lists) D multiplications, on one worker, which reads D +
// 12 bytes per class. Memory: 20 bytes per class of these lists; the number of concurrent examples
// is limited to 64 MiB, but at least one.
//
// REQUIRES: as BoundedTopK; bounded.classes are given; 1 <= num_probed <= L.
void ProbedTopK(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                const RowLists& lists, int64_t num_probed, const Execution& execution,
                const BoundedTopKOutputs& outputs);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_PROBED_TOP_K_H_
