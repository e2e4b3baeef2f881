// SPDX-License-Identifier: Apache-2.0
//
// Memory that runs out at each request of each algorithm: the caller gets an exception, and what
// the algorithm changes stays as it was.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/factored_coordinates.h"
#include "core/mean_of_rows.h"
#include "tests/calls.h"
#include "tests/factored_layer.h"
#include "tests/failing_memory.h"

namespace tfx::core {

using test::ExpectUnchangedWithoutMemory;

// For algorithms without state.
bool Nothing() { return true; }

// As ExpectUnchangedWithoutMemory; with enough memory the call changes something.
template <typename Calls, typename Call>
void ExpectUnchangedUntilItEnds(const Calls& calls, const Call& call) {
  const auto before = calls.State();
  ExpectUnchangedWithoutMemory([&] { return calls.State(); }, call);
  EXPECT(calls.State() != before);
}

TEST(Candidates) {
  for (const bool own : {false, true}) {
    CandidateCalls calls({400, 9, 70, 2, 150}, own);
    ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& e) { calls.Logits(70, e); });
    ExpectUnchangedUntilItEnds(calls, [&](const Execution& e) { calls.Update(70, e); });
  }
}

TEST(Softmax) {
  SoftmaxCalls calls(40, 7, 300, 2);
  ExpectUnchangedUntilItEnds(calls, [&](const Execution& e) { calls.Update(40, e); });
}

// So many kept logits that a worker has to make room for them.
TEST(Streamed) {
  const KeepRule rule = {{1, 2}, 0, 2000};
  for (const bool keeps : {false, true}) {
    StreamedCalls calls({40, 5, 2000, 2, 3}, /*rounds=*/true, keeps ? &rule : nullptr);
    ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& e) { calls.Run(40, e); });
    EXPECT(!keeps || calls.num_kept > 60'000);
  }
}

TEST(Hashes) {
  std::mt19937 random(1);
  constexpr int64_t kQueries = 33;
  for (const Functions& functions : Families(random)) {
    const int64_t num_tables = functions.family.num_tables;
    HashCalls calls(functions.family, 500, kQueries, 20, random);
    ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& e) { calls.Codes(kQueries, e); });
    for (int32_t now : {1, 2}) {  // all tables are built, then brought up to date
      ExpectUnchangedUntilItEnds(
          calls, [&](const Execution& e) { calls.Update(num_tables, now, {3, -1, 7}, e); });
      EXPECT(calls.index.touched_at[3] == now);
    }
    // A failed call leaves no votes.
    BucketVotes fresh, failed;
    Workspace workspace;
    EXPECT(calls.Voted(kQueries, OneWorker(InstructionSets().front(), workspace), &fresh));
    const auto expected_ids = calls.ids, expected_votes = calls.votes;
    ExpectUnchangedWithoutMemory(
        Nothing, [&](const Execution& e) { EXPECT(calls.Voted(kQueries, e, &failed)); });
    EXPECT(calls.ids == expected_ids && calls.votes == expected_votes);
    ExpectUnchangedWithoutMemory(Nothing,
                                 [&](const Execution& e) { EXPECT(calls.Own(kQueries, e)); });
  }
}

TEST(Means) {
  const std::vector<float> rows(1000 * 70, 1.5f);
  std::vector<float> mean(70);
  ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& execution) {
    MeanOfRows(rows.data(), false, 1000, 70, execution, mean.data());
  });
}

TEST(Draws) {
  DrawCalls calls(4, 20, 7);
  ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& e) { EXPECT(calls.Run(7, e)); });
}

// A step through examples, through the width, and one that must end in a new anchor; each with a
// new anchor by the condition, and one slot left for it, which has rows.
TEST(FactoredSteps) {
  for (const Shape& shape : {Shape{60, 8, 5, 2}, Shape{60, 8, 20, 2}}) {
    for (const double step : {0.5, 1.9}) {
      std::mt19937 random(3);
      const Matrix weights = RandomWeights(shape, random);
      const Batch<double> batch(shape, Signs::kPositive, step, random);
      Factored<double> factored(shape, weights, InstructionSets().front(), 1);
      for (int i = 0; i < kSlots - 1; ++i) {  // each row in another slot, all slots in use
        Reanchor(factored.layer.State(), factored.execution);
        const Batch<double> other(shape, Signs::kPositive, 0.5, random);
        factored.Step(other, 0, INFINITY, true);
      }
      factored.Prepare(batch, false);
      const auto state = [&] { return factored.layer; };
      const auto before = state();
      std::vector<double> targets(factored.targets), squares(factored.squares), sums(factored.sums),
          gram(factored.gram_hidden), u(factored.u_hidden);
      ExpectUnchangedWithoutMemory(state, [&](const Execution& execution) {
        FactoredStatistics<double>(
            factored.layer.State(), batch.View(), /*update_rows=*/true, execution,
            {targets.data(), squares.data(), sums.data(), gram.data(), u.data()});
      });
      for (const double condition : {1.0001, 1e9}) {
        Factored<double> copy(shape, weights, InstructionSets().front(), 1);
        copy.layer = before;
        copy.Prepare(batch, false);
        ExpectUnchangedWithoutMemory(
            [&] { return copy.layer; },
            [&](const Execution& execution) {
              const DenseExecution<double> dense(execution);
              FactoredUpdate<double>(
                  copy.layer.State(), batch.View(),
                  {copy.gram_hidden.data(), copy.u_hidden.data(), batch.g_target.data(),
                   batch.g_squares.data(), batch.g_sum.data()},
                  {batch.learning_rate, 0.01, condition}, true, dense, copy.hidden_gradient.data());
            });
        EXPECT(!(copy.layer == before));
      }
      for (const bool settles : {true, false}) {
        Factored<double> copy(shape, weights, InstructionSets().front(), 1);
        copy.layer = before;
        ExpectUnchangedWithoutMemory(
            [&] { return copy.layer; },
            [&](const Execution& execution) {
              const DenseExecution<double> dense(execution);
              (settles ? Settle<double> : Reanchor<double>)(copy.layer.State(), dense);
            });
        EXPECT(!(copy.layer == before));
      }
    }
  }
}

// Tasks that throw, on separate threads.
TEST(TasksThrowToTheCaller) {
  const ParallelFor on_threads = OneThreadAnIndex;
  for (int num_workers : {1, 3}) {
    std::atomic<int> later{0};
    bool thrown = false;
    try {
      RunPhases({{"some",
                  {{20,
                    [](int64_t task, int) {
                      if (task == 7) throw OutOfMemory(77);
                    }}}},
                 {"later", {{20, [&](int64_t, int) { ++later; }}}}},
                num_workers, on_threads);
    } catch (const OutOfMemory& error) {
      thrown = error.bytes() == 77;
    }
    EXPECT(thrown);
    EXPECT(later == 0);
  }
}

}  // namespace tfx::core
