// SPDX-License-Identifier: Apache-2.0

#include "core/softmax_update.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/expect.h"
#include "tests/softmax_update_problem.h"
#include "tests/workers.h"

namespace tfx::core {

using Problem = test::SoftmaxUpdateProblem;
using Results = test::SoftmaxUpdateResults;

// A step of SGD with rate 1.
Results Run(const Problem& p, InstructionSet set, int num_workers, bool rounds, bool has_mean) {
  Results r = {p.kernel, p.bias, std::vector<float>(p.hidden.size())};
  const Workers workers(set, num_workers);
  const RowUpdater updater({RowMethod::kSgd, 1, 1, INFINITY, 0, 0, 1, 1, 0}, nullptr,
                           workers.execution.rows);
  const auto of = [](const auto& array) { return array.data(); };
  const SoftmaxBatch batch = p.Batch(of, has_mean, rounds);
  SoftmaxUpdate({r.kernel.data(), r.bias.data(), false, p.num_classes, p.width},
                {{r.kernel.data(), false, p.width, {nullptr, nullptr}, nullptr},
                 {r.bias.data(), false, 1, {nullptr, nullptr}, nullptr}},
                batch, &updater, workers.execution, r.hidden_gradient.data());
  return r;
}

void Test(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels) {
  const Problem problem(batch, width, num_classes, num_labels);
  for (const bool has_mean : {false, true}) {
    const Results expected = problem.Expected(has_mean);
    for (InstructionSet set : InstructionSets()) {
      for (const bool rounds : {false, true}) {
        const Results one_worker = Run(problem, set, 1, rounds, has_mean);
        const float error = rounds ? 2e-2f : 1e-5f;
        test::ExpectClose(one_worker.kernel, expected.kernel, error);
        test::ExpectClose(one_worker.bias, expected.bias, error);
        test::ExpectClose(one_worker.hidden_gradient, expected.hidden_gradient, error);
        EXPECT(Run(problem, set, 3, rounds, has_mean) == one_worker);
      }
    }
  }
}

TEST(All) {
  Test(1, 1, 2, 1);
  Test(33, 65, 1009, 2);
  Test(200, 17, 500, 0);
  Test(100, 300, 123, 5);
  Test(0, 5, 10, 2);
  Test(4, 0, 10, 2);
}

}  // namespace tfx::core
