// SPDX-License-Identifier: Apache-2.0
//
// Bytes that algorithms allocate for a sequence of batches of uneven sizes, compared with those for
// only the largest batch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "core/mean_of_rows.h"
#include "tests/calls.h"
#include "tests/expect.h"
#include "tests/factored_layer.h"
#include "tests/failing_memory.h"

namespace tfx::core {

constexpr int64_t kLargest = 320, kStep = 16, kWidth = 24, kClasses = 3000, kLabels = 2;
constexpr int kWorkers = 2;

using Op = std::function<void(int64_t batch, const Execution& execution)>;

// What calls add to what is in use, at most. One takes a byte itself, so that what is held while it
// runs is seen at its end.
int64_t MostBytes(const std::vector<int64_t>& batches, const Op& op) {
  Workspace workspace;
  const ParallelFor on_caller = OnCaller;
  const int64_t before = test::CountAnew();
  int64_t most = 0;
  for (const int64_t batch : batches) {
    const Workspace::Scope scope(workspace);
    workspace.Take<char>(1);
    op(batch, Execution(InstructionSets().front(), kWorkers, on_caller, workspace));
    most = std::max(most, workspace.held() + test::MostBytesInUse() - before);
    test::CountAnew();
  }
  return most;
}

void Expect(const Op& op) {
  std::vector<int64_t> rising;
  for (int64_t batch = kStep; batch <= kLargest; batch += kStep) rising.push_back(batch);
  std::vector<int64_t> falling(rising.rbegin(), rising.rend()), at_random = rising;
  std::shuffle(at_random.begin(), at_random.end(), std::mt19937(1));
  const int64_t alone = MostBytes({kLargest, kLargest, kLargest}, op);
  for (const auto& batches : {rising, falling, at_random}) {
    EXPECT(MostBytes(batches, op) <= alone + alone / 20 + (1 << 16));
  }
}

TEST(Candidates) {
  for (const bool own : {false, true}) {
    CandidateCalls calls({kClasses, kWidth, kLargest, kLabels, 200}, own);
    const Op logits = [&](int64_t batch, const Execution& e) { calls.Logits(batch, e); };
    const Op update = [&](int64_t batch, const Execution& e) { calls.Update(batch, e); };
    Expect(logits);
    Expect(update);
    Expect([&](int64_t batch, const Execution& e) {  // as a step has them
      logits(batch, e);
      update(batch, e);
    });
  }
}

TEST(Softmax) {
  SoftmaxCalls update(kLargest, kWidth, kClasses, kLabels);
  Expect([&](int64_t batch, const Execution& e) { update.Update(batch, e); });
  const KeepRule rule = {{1, 2}, 1.0f / 50, 50};
  for (const KeepRule* keep : {static_cast<const KeepRule*>(nullptr), &rule}) {
    StreamedCalls logits({kLargest, kWidth, kClasses, kLabels, 20}, /*rounds=*/false, keep);
    Expect([&](int64_t batch, const Execution& e) { logits.Run(batch, e); });
  }
}

TEST(Hashes) {
  std::mt19937 random(1);
  const Functions functions = Functions::Winners(kWidth, 4, 1, 3, 20, random);
  HashCalls calls(functions.family, kClasses, kLargest, 100, random);
  int32_t now = 1;
  Workspace workspace;
  calls.Update(functions.family.num_tables, now++, {},
               OneWorker(InstructionSets().front(), workspace));
  BucketVotes of_op;
  for (const bool own : {false, true}) {
    Expect([&](int64_t batch, const Execution& e) {
      calls.Codes(batch, e);
      EXPECT(own ? calls.Own(batch, e) : calls.Voted(batch, e, &of_op));
    });
  }
  Expect([&](int64_t batch, const Execution& e) {  // more tables, or fewer
    calls.Update(batch / kStep, now++, {}, e);
  });
}

TEST(FactoredSteps) {
  const Shape shape = {kClasses, kWidth, kLargest, kLabels};
  std::mt19937 random(3);
  const Matrix weights = RandomWeights(shape, random);
  const Batch<float> batch(shape, Signs::kPositive, 0.1, random);
  Layer<float> layer(shape, weights);
  std::vector<float> targets(kLargest * kLabels), squares(kLargest), sums(kLargest);
  std::vector<float> gram(kLargest * kWidth), u(gram.size()), hidden_gradient(gram.size());
  Expect([&](int64_t size, const Execution& execution) {
    const DenseExecution<float> dense(execution);
    FactoredBatch<float> view = batch.View();
    view.batch = size;
    FactoredStatistics<float>(layer.State(), view, true, dense,
                              {targets.data(), squares.data(), sums.data(), gram.data(), u.data()});
    FactoredUpdate<float>(
        layer.State(), view,
        {gram.data(), u.data(), batch.g_target.data(), batch.g_squares.data(), batch.g_sum.data()},
        {batch.learning_rate, 0, 1e9f}, true, dense, hidden_gradient.data());
  });
}

TEST(Others) {
  const std::vector<float> rows(kLargest * 1000, 1.5f);
  std::vector<float> mean(1000);
  Expect([&](int64_t size, const Execution& execution) {
    MeanOfRows(rows.data(), false, 10, 3 * size, execution, mean.data());
  });
  DrawCalls calls(8, 10, 10 * kLargest);
  Expect([&](int64_t size, const Execution& e) { EXPECT(calls.Run(10 * size, e)); });
}

}  // namespace tfx::core
