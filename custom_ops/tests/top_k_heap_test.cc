// SPDX-License-Identifier: Apache-2.0

#include "core/top_k_heap.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

void KeepsWhatASortKeeps(int64_t num_classes, int64_t k) {
  std::mt19937 random(1);
  std::vector<ScoredClass> all(num_classes), heap(k);
  for (int64_t c = 0; c < num_classes; ++c) {
    const int score = static_cast<int>(random() % 20);  // many ties, and some NaN
    all[c] = {score == 0 ? NAN : static_cast<float>(score), static_cast<int32_t>(c)};
    OfferToHeap(all[c], heap.data(), std::min(c, k), k);
  }
  std::sort(all.begin(), all.end(), RanksAbove);
  std::sort(heap.begin(), heap.end(), RanksAbove);
  for (int64_t i = 0; i < k; ++i) EXPECT(heap[i].id == all[i].id);
}

TEST(OrdersByScoreThenId) {
  EXPECT(RanksAbove({2, 5}, {1, 0}));
  EXPECT(RanksAbove({1, 0}, {1, 5}));
  EXPECT(!RanksAbove({1, 5}, {1, 5}));
  EXPECT(RanksAbove({-INFINITY, 0}, {NAN, 1}));
  EXPECT(RanksAbove({NAN, 0}, {-INFINITY, 1}));
  EXPECT(RanksAbove({-1e30f, 9}, {NAN, 1}));
}

TEST(All) {
  KeepsWhatASortKeeps(1000, 1);
  KeepsWhatASortKeeps(1000, 37);
  KeepsWhatASortKeeps(50, 50);
}

}  // namespace tfx::core
