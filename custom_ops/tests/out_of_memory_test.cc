// SPDX-License-Identifier: Apache-2.0
//
// Memory that runs out at each request of each algorithm: the caller gets an exception, and what
// the algorithm changes stays as it was.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "core/bucket_candidates.h"
#include "core/candidate_logits.h"
#include "core/candidate_update.h"
#include "core/factored_coordinates.h"
#include "core/mean_of_rows.h"
#include "core/multi_index_draws.h"
#include "core/row_update.h"
#include "core/softmax_update.h"
#include "core/streamed_logits.h"
#include "tests/factored_layer.h"
#include "tests/failing_memory.h"
#include "tests/hash_problem.h"
#include "tests/softmax_update_problem.h"
#include "tests/streamed_logits_problem.h"

namespace tfx::core {

using test::ExpectUnchangedWithoutMemory;

constexpr RowStep kSgd = {RowMethod::kSgd, 1, 1, INFINITY, 0, 0, 1, 1, 0};

// Of what has no state.
bool Nothing() { return true; }

// Rows of a layer, and a step of SGD on them.
struct Rows {
  Rows(int64_t num_classes, int64_t width)
      : kernel(num_classes * width, 0.5f), bias(num_classes, 0.25f), width(width) {}

  LayerWeights Weights() {
    return {kernel.data(), bias.data(), false, static_cast<int64_t>(bias.size()), width};
  }
  LayerRows ToUpdate() {
    return {{kernel.data(), false, width, {nullptr, nullptr}, nullptr},
            {bias.data(), false, 1, {nullptr, nullptr}, nullptr}};
  }
  auto State() const { return std::tuple(kernel, bias); }

  std::vector<float> kernel, bias;
  const int64_t width;
};

void Candidates(bool own) {
  constexpr int64_t kBatch = 70, kLabels = 2, kCandidates = 150, kWidth = 9, kClasses = 400;
  std::mt19937 random(1);
  std::vector<int64_t> labels(kBatch * kLabels), candidates((own ? kBatch : 1) * kCandidates);
  for (auto* ids : {&labels, &candidates}) {
    for (int64_t& id : *ids) id = static_cast<int64_t>(random() % (kClasses + 1)) - 1;
  }
  const std::vector<float> hidden(kBatch * kWidth, 0.5f);
  std::vector<float> of_labels(labels.size(), 0.5f), of_candidates(kBatch * kCandidates, 0.5f);
  const CandidateBatch batch = {hidden.data(), labels.data(), candidates.data(), own,
                                kBatch,        kLabels,       kCandidates};
  Rows rows(kClasses, kWidth);
  std::vector<uint8_t> hits(of_candidates.size());
  ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& execution) {
    CandidateLogits(rows.Weights(), batch, execution,
                    {of_labels.data(), of_candidates.data(), reinterpret_cast<bool*>(hits.data())});
  });
  std::vector<float> hidden_gradient(hidden.size());
  const auto update = [&](const Execution& execution) {
    const RowUpdater updater(kSgd, nullptr, execution.rows);
    (own ? OwnCandidateUpdate : SharedCandidateUpdate)(rows.Weights(), rows.ToUpdate(), batch,
                                                       {of_labels.data(), of_candidates.data()},
                                                       &updater, execution, hidden_gradient.data());
  };
  const auto before = rows.State();
  ExpectUnchangedWithoutMemory([&] { return rows.State(); }, update);
  EXPECT(rows.State() != before);
}

void Softmax() {
  test::SoftmaxUpdateProblem p(40, 7, 300, 2);
  std::vector<float> hidden_gradient(p.hidden.size());
  const auto of = [](const auto& array) { return array.data(); };
  const auto update = [&](const Execution& execution) {
    const RowUpdater updater(kSgd, nullptr, execution.rows);
    SoftmaxUpdate({p.kernel.data(), p.bias.data(), false, p.num_classes, p.width},
                  {{p.kernel.data(), false, p.width, {nullptr, nullptr}, nullptr},
                   {p.bias.data(), false, 1, {nullptr, nullptr}, nullptr}},
                  p.Batch(of, true, false), &updater, execution, hidden_gradient.data());
  };
  const auto before = p.kernel;
  ExpectUnchangedWithoutMemory([&] { return std::tuple(p.kernel, p.bias); }, update);
  EXPECT(p.kernel != before);
}

// So many kept logits that a worker has to make room for them.
void Streamed(bool keeps) {
  constexpr int64_t kBatch = 40, kWidth = 5, kClasses = 2000, kLabels = 2, kBest = 3;
  const test::WholeNumbers numbers(kBatch, kWidth, kClasses, kLabels);
  const KeepRule rule = {{1, 2}, 0, kClasses};
  StreamedLogitsInputs inputs = {};
  inputs.hidden = numbers.hidden.data();
  inputs.kernel = numbers.kernel.data();
  inputs.bias = numbers.bias.data();
  inputs.rounds = true;
  inputs.labels = numbers.labels.data();
  inputs.batch = kBatch;
  inputs.width = kWidth;
  inputs.num_classes = kClasses;
  inputs.num_labels = kLabels;
  inputs.k = kBest;
  inputs.shard = {0, 1, kClasses};
  inputs.keep = keeps ? &rule : nullptr;
  test::StreamedLogitsResults results(inputs);
  KeptProbabilities kept;
  ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& execution) {
    StreamedLogits(inputs, execution, results.Outputs(&kept));
  });
  if (keeps) EXPECT(kept.ids.size() > 60'000);
}

void Hashes() {
  std::mt19937 random(1);
  constexpr int64_t kClasses = 500, kQueries = 33;
  for (const Functions& functions : Families(random)) {
    const HashFamily& family = functions.family;
    Floats rows = SparseRows(kClasses * family.width, random);
    Ids codes(kQueries * family.num_tables);
    ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& execution) {
      HashCodes(family, {rows.data(), nullptr, false, kQueries, family.width}, execution,
                codes.data());
    });

    Index index(family, kClasses);
    const auto state = [&] {
      return std::tuple(index.entries, index.starts, index.touched_at, index.built_at);
    };
    const std::vector<int64_t> touched = {3, -1, 7};
    for (int32_t now : {1, 2}) {  // all tables are built, then brought up to date
      const auto before = state();
      int64_t moved = 0;
      ExpectUnchangedWithoutMemory(
          [&] { return std::tuple(state(), moved); },
          [&](const Execution& execution) {
            UpdateTables(family, {rows.data(), nullptr, false, kClasses, family.width},
                         {index.touched_at.data(), index.built_at.data()}, 0, family.num_tables,
                         now, index.Tables(), execution, &moved, touched.data(), touched.size());
          });
      EXPECT(state() != before);
      EXPECT(index.touched_at[3] == now);
    }

    Ids order(family.num_tables);
    std::iota(order.begin(), order.end(), 0);
    const std::vector<uint32_t> rotations(order.size());
    const BucketQueries queries = {codes.data(),      kQueries, 1, order.data(), rotations.data(),
                                   /*most*/ kClasses, /*S*/ 20, 1};
    std::vector<int64_t> ids(kQueries * queries.budget), votes(queries.budget);
    ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& execution) {
      EXPECT(OwnBucketCandidates(index.Tables(), queries, execution, ids.data(), nullptr));
    });
    // What failed has left no votes behind.
    BucketVotes fresh, failed;
    std::vector<int64_t> expected_ids(ids), expected_votes(votes);
    Workspace workspace;
    fresh.Candidates(index.Tables(), queries, 5, OneWorker(kInstructionSets[0], workspace),
                     expected_ids.data(), expected_votes.data());
    ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& execution) {
      failed.Candidates(index.Tables(), queries, 5, execution, ids.data(), votes.data());
    });
    EXPECT(std::equal(ids.begin(), ids.begin() + queries.budget, expected_ids.begin()));
    EXPECT(votes == expected_votes);
  }
}

void Means() {
  const std::vector<float> rows(1000 * 70, 1.5f);
  std::vector<float> mean(70);
  ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& execution) {
    MeanOfRows(rows.data(), false, 1000, 70, execution, mean.data());
  });
}

void Draws() {
  constexpr int64_t kWords = 4, kClasses = kWords * kWords, kBatch = 20, kDraws = 7;
  std::vector<int32_t> codes(kClasses), entries(kClasses), starts(kClasses + 1);
  std::iota(codes.begin(), codes.end(), 0);
  entries = codes;
  std::iota(starts.begin(), starts.end(), 0);
  const std::vector<int64_t> sums(starts.begin(), starts.end());
  const std::vector<double> scores(kBatch * kWords), uniform(kBatch * kDraws * 3, 0.5);
  std::vector<int64_t> ids(kBatch * kDraws);
  std::vector<double> log_probability(ids.size());
  const MultiIndexDraws draws = {scores.data(), scores.data(), uniform.data(), kBatch, kDraws};
  const PairLists lists = {codes.data(), entries.data(), starts.data(),
                           sums.data(),  kClasses,       kWords};
  ExpectUnchangedWithoutMemory(Nothing, [&](const Execution& execution) {
    EXPECT(draws.Run(lists, execution, ids.data(), log_probability.data()));
  });
}

// A step through examples, through the width, and one that has to end in a new anchor; each with
// the new anchor that the condition asks for, and one slot left for it, which has rows.
void FactoredSteps() {
  for (const Shape& shape : {Shape{60, 8, 5, 2}, Shape{60, 8, 20, 2}}) {
    for (const double step : {0.5, 1.9}) {
      std::mt19937 random(3);
      const Matrix weights = RandomWeights(shape, random);
      const Batch<double> batch(shape, Signs::kPositive, step, random);
      Factored<double> factored(shape, weights, kInstructionSets[0], 1);
      for (int i = 0; i < kSlots - 1; ++i) {  // each row of its own slot, some of all
        Reanchor(factored.layer.State(), factored.execution);
        const Batch<double> other(shape, Signs::kPositive, 0.5, random);
        factored.Step(other, 0, INFINITY, true);
      }
      factored.Prepare(batch, false);
      const auto state = [&] { return factored.layer; };
      const auto before = state();
      for (const bool update_rows : {true}) {
        std::vector<double> targets(factored.targets), squares(factored.squares),
            sums(factored.sums), gram(factored.gram_hidden), u(factored.u_hidden);
        ExpectUnchangedWithoutMemory(state, [&](const Execution& execution) {
          FactoredStatistics<double>(
              factored.layer.State(), batch.View(), update_rows, execution,
              {targets.data(), squares.data(), sums.data(), gram.data(), u.data()});
        });
      }
      for (const double condition : {1.0001, 1e9}) {
        Factored<double> copy(shape, weights, kInstructionSets[0], 1);
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
        Factored<double> copy(shape, weights, kInstructionSets[0], 1);
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

// Tasks that throw, on threads of their own.
void TasksThrowToTheCaller() {
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

int main() {
  for (const bool own : {false, true}) tfx::core::Candidates(own);
  for (const bool keeps : {false, true}) tfx::core::Streamed(keeps);
  tfx::core::Softmax();
  tfx::core::Hashes();
  tfx::core::Means();
  tfx::core::Draws();
  tfx::core::FactoredSteps();
  tfx::core::TasksThrowToTheCaller();
  return tfx::test::Result();
}
