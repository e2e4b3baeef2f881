// SPDX-License-Identifier: Apache-2.0
//
// The best k classes of an example, kept in a heap during a pass over classes.

#ifndef TFX_LARGEOUT_CORE_TOP_K_HEAP_H_
#define TFX_LARGEOUT_CORE_TOP_K_HEAP_H_

#include <stdint.h>

namespace tfx::core {

struct ScoredClass {
  float score;
  int32_t id;
};

// The order key of a score: -infinity for NaN, else the score.
float OrderKey(float score);

// True if a ranks above b: a higher score, or the same score and a lower id. NaN counts as
// -infinity.
bool RanksAbove(ScoredClass a, ScoredClass b);

// Offers `candidate` to a heap of the best k classes, whose root is the worst of them.
// REQUIRES: k > 0; 0 <= size <= k; heap has room for k; candidate.id is not in the heap.
void OfferToHeap(ScoredClass candidate, ScoredClass* heap, int64_t size, int64_t k);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_TOP_K_HEAP_H_
