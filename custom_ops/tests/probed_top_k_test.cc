// SPDX-License-Identifier: Apache-2.0

#include "core/probed_top_k.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/bounded_top_k_problem.h"
#include "tests/expect.h"

namespace tfx::core {

Results Probed(const Problem& problem, const Lists& lists, int64_t num_probed, InstructionSet set) {
  Results r(problem.inputs.batch, problem.inputs.k);
  Probed(problem, lists, num_probed, Workers(set, 2).execution, &r);
  return r;
}

// The exact best of the classes of the first lists, others taken out by their bias.
Results Expected(Problem problem, int64_t num_lists, int64_t num_probed, InstructionSet set) {
  for (int64_t c = 0; c < problem.inputs.weights.num_classes; ++c) {
    if (c % num_lists >= num_probed) problem.bias[c] = -std::numeric_limits<float>::infinity();
  }
  problem.inputs.weights.bias = problem.bias.data();
  return problem.Exact(set);
}

void Test(int64_t batch, int64_t width, int64_t num_classes, int64_t k, int64_t num_lists,
          int64_t num_probed) {
  const Problem problem(batch, width, num_classes, k);
  const Lists lists(problem, num_lists);
  for (InstructionSet set : InstructionSets()) {
    const Results found = Probed(problem, lists, num_probed, set);
    const Results expected = Expected(problem, num_lists, num_probed, set);
    for (size_t i = 0; i < expected.ids.size(); ++i) {
      const bool is_there = expected.scores[i] > -INFINITY;
      EXPECT(found.ids[i] == (is_there ? expected.ids[i] : -1));
      EXPECT(!is_there || std::abs(found.scores[i] - expected.scores[i]) <=
                              1e-5f * (1 + std::abs(expected.scores[i])));
      EXPECT(is_there || found.scores[i] == -INFINITY);
    }
  }
}

// Corrupt lists, or lists of another W, are ignored: all classes are searched.
TEST(TestWhatDoesNotHold) {
  const auto exact_after = [](auto change) {
    Problem problem(3, 9, 3001, 5);
    Lists lists(problem, 20);
    change(&problem, &lists);
    for (InstructionSet set : InstructionSets()) {
      const Results found = Probed(problem, lists, 3, set), expected = problem.Exact(set);
      EXPECT(found.ids == expected.ids);
      EXPECT(found.num_candidates == std::vector<int64_t>(3, 3001));
    }
  };
  exact_after([](Problem* p, Lists*) { p->hidden[10] = NAN; });
  exact_after([](Problem* p, Lists*) { p->hidden[10] = 1e30f; });
  exact_after([](Problem* p, Lists*) {
    for (float& w : p->kernel) w = -w;
  });
  exact_after([](Problem* p, Lists*) { std::fill_n(p->kernel.begin(), 9 * 2000, NAN); });
  exact_after([](Problem*, Lists* lists) {
    std::fill(lists->errors.begin(), lists->errors.end(), -INFINITY);
  });
  exact_after([](Problem*, Lists* lists) { std::fill_n(lists->ends.begin(), 20, 0); });
  exact_after([](Problem*, Lists* lists) { lists->ends[19] = lists->ends[18] - 1; });
  exact_after([](Problem*, Lists* lists) { lists->ends[0] = -1; });
  exact_after([](Problem*, Lists* lists) { lists->ends[1] = 1 << 30; });
  exact_after([](Problem*, Lists* lists) { lists->ends[1] = 0; });
}

TEST(All) {
  for (int64_t num_probed : {1, 3, 40}) {
    Test(1, 64, 5003, 10, 40, num_probed);
    Test(20, 33, 5003, 10, 40, num_probed);
  }
  Test(0, 4, 100, 1, 3, 1);
  Test(2, 4, 100, 0, 3, 3);
  Test(2, 4, 100, 100, 3, 2);  // more than these lists have
  Test(1, 1, 17, 3, 17, 2);
  Test(1, 0, 301, 2, 5, 2);
}

}  // namespace tfx::core
