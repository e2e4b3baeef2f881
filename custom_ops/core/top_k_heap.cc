// SPDX-License-Identifier: Apache-2.0

#include "core/top_k_heap.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tfx::core {

float OrderKey(float score) {
  return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
}

bool RanksAbove(ScoredClass a, ScoredClass b) {
  const float key_a = OrderKey(a.score);
  const float key_b = OrderKey(b.score);
  return key_a != key_b ? key_a > key_b : a.id < b.id;
}

void OfferToHeap(ScoredClass candidate, ScoredClass* heap, int64_t size, int64_t k) {
  if (size == k) {
    if (!RanksAbove(candidate, heap[0])) return;
    std::pop_heap(heap, heap + size, RanksAbove);
    --size;
  }
  heap[size] = candidate;
  std::push_heap(heap, heap + size + 1, RanksAbove);
}

}  // namespace tfx::core
