// SPDX-License-Identifier: Apache-2.0

#include "core/bounded_top_k.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/bounded_top_k_problem.h"
#include "tests/expect.h"

namespace tfx::core {

// Bit by bit, NaN too; returns the most candidates of an example.
int64_t Agrees(const Problem& problem) {
  const StreamedLogitsInputs& inputs = problem.inputs;
  const Bounds bounds(problem.kernel, inputs.weights.num_classes, inputs.weights.width);
  int64_t most = 0;
  for (InstructionSet set : InstructionSets()) {
    const Results exact = problem.Exact(set);
    for (int num_workers : {1, 3}) {
      Results bounded(inputs.batch, inputs.k);
      Bounded(problem, bounds, Workers(set, num_workers).execution, &bounded);
      EXPECT(bounded.ids == exact.ids);
      for (size_t i = 0; i < exact.scores.size(); ++i) {
        EXPECT(bounded.scores[i] == exact.scores[i] ||
               (std::isnan(bounded.scores[i]) && std::isnan(exact.scores[i])));
      }
      for (int64_t number : bounded.num_candidates) most = std::max(most, number);
    }
  }
  return most;
}

void Test(int64_t batch, int64_t width, int64_t num_classes, int64_t k, bool uses_bounds) {
  const int64_t most = Agrees(Problem(batch, width, num_classes, k));
  EXPECT((most <= num_classes / 8) == uses_bounds);
}

// If bounds can't decide, or don't hold, all rows are read.
TEST(TestHardProblems) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto with = [](auto change) {
    Problem problem(3, 9, 3001, 5);
    change(&problem);
    return Agrees(problem);
  };
  EXPECT(with([](Problem* p) {
           std::fill(p->kernel.begin(), p->kernel.end(), 1.0f);
           std::fill(p->bias.begin(), p->bias.end(), 1.0f);
         }) == 3001);
  EXPECT(with([](Problem* p) { p->hidden[10] = NAN; }) == 3001);
  EXPECT(with([](Problem* p) { p->hidden[10] = kInfinity; }) == 3001);
  EXPECT(with([](Problem* p) { p->hidden[10] = 1e30f; }) == 3001);
  EXPECT(with([](Problem* p) { std::fill(p->hidden.begin(), p->hidden.end(), 0.0f); }) < 3001);
  EXPECT(with([](Problem* p) {
           p->bias[7] = NAN;
           p->bias[9] = kInfinity;
           p->bias[8] = 3e38f;
         }) < 3001);
  EXPECT(with([](Problem* p) {
           for (int c = 0; c < 3001; ++c) p->bias[c] = c % 8 == 0 ? 1.0f : -kInfinity;
         }) < 3001);
  EXPECT(with([](Problem* p) { std::fill(p->bias.begin() + 3, p->bias.end(), -kInfinity); }) ==
         3001);
  // Each class beats those before it.
  EXPECT(with([](Problem* p) {
           for (int c = 0; c < 3001; ++c) p->bias[c] = static_cast<float>(c);
         }) < 3001);
}

TEST(All) {
  for (int64_t batch = 1; batch <= 8; ++batch) Test(batch, 64, 5003, 10, true);
  Test(1, 1, 3001, 1, true);
  Test(1, 7, 20001, 13, true);
  Test(2, 3, 16 * 512, 3, true);
  Test(9, 64, 3001, 10, false);
  Test(0, 4, 100, 1, true);
  Test(2, 4, 100, 100, false);
  Test(2, 4, 100, 0, false);
  Test(1, 0, 3001, 2, true);
}

}  // namespace tfx::core
