// SPDX-License-Identifier: Apache-2.0
//
// Bytes that algorithms ask for when batches of uneven sizes follow each other, beside those that
// the largest batch alone asks for.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "core/bucket_candidates.h"
#include "core/candidate_logits.h"
#include "core/candidate_update.h"
#include "core/factored_statistics.h"
#include "core/factored_update.h"
#include "core/mean_of_rows.h"
#include "core/multi_index_draws.h"
#include "core/softmax_update.h"
#include "core/streamed_logits.h"
#include "tests/expect.h"
#include "tests/factored_layer.h"
#include "tests/failing_memory.h"
#include "tests/hash_problem.h"

namespace tfx::core {

constexpr int64_t kLargest = 320, kStep = 16, kWidth = 24, kClasses = 3000, kLabels = 2;
constexpr int kWorkers = 2;
constexpr RowStep kSgd = {RowMethod::kSgd, 1e-3f, 1, INFINITY, 0, 0, 1, 1, 0};

using Op = std::function<void(int64_t batch, const Execution& execution)>;

std::vector<int64_t> SomeIds(int64_t n, int64_t num_classes) {
  std::mt19937 random(1);
  std::vector<int64_t> ids(n);
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % num_classes);
  return ids;
}

// What calls add to what is in use, at most. One takes a byte itself, so that what is held while it
// runs is seen at its end.
int64_t MostBytes(const std::vector<int64_t>& batches, const Op& op) {
  Workspace workspace;
  const int64_t before = test::CountAnew();
  int64_t most = 0;
  for (const int64_t batch : batches) {
    const Workspace::Scope scope(workspace);
    workspace.Take<char>(1);
    op(batch, Execution(kInstructionSets[0], kWorkers, test::kOnCaller, workspace));
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

void Candidates(bool own) {
  constexpr int64_t kCandidates = 200;
  const std::vector<int64_t> labels = SomeIds(kLargest * kLabels, kClasses);
  const std::vector<int64_t> candidates = SomeIds(kLargest * kCandidates, kClasses);
  const std::vector<float> hidden(kLargest * kWidth, 0.5f);
  std::vector<float> kernel(kClasses * kWidth, 0.5f), hidden_gradient(hidden.size());
  std::vector<float> of_labels(labels.size(), 0.5f), of_candidates(candidates.size(), 0.5f);
  std::vector<uint8_t> hits(candidates.size());
  const LayerWeights weights = {kernel.data(), nullptr, false, kClasses, kWidth};
  const LayerRows rows = {{kernel.data(), false, kWidth, {nullptr, nullptr}, nullptr}, {}};
  const auto batch_of = [&](int64_t batch) {
    return CandidateBatch{hidden.data(), labels.data(), candidates.data(), own,
                          batch,         kLabels,       kCandidates};
  };
  const Op logits = [&](int64_t batch, const Execution& execution) {
    CandidateLogits(weights, batch_of(batch), execution,
                    {of_labels.data(), of_candidates.data(), reinterpret_cast<bool*>(hits.data())});
  };
  const Op update = [&](int64_t batch, const Execution& execution) {
    const RowUpdater updater(kSgd, nullptr, execution.rows);
    (own ? OwnCandidateUpdate : SharedCandidateUpdate)(weights, rows, batch_of(batch),
                                                       {of_labels.data(), of_candidates.data()},
                                                       &updater, execution, hidden_gradient.data());
  };
  Expect(logits);
  Expect(update);
  Expect([&](int64_t batch, const Execution& execution) {  // as a step has them
    logits(batch, execution);
    update(batch, execution);
  });
}

void Softmax() {
  const std::vector<int64_t> labels = SomeIds(kLargest * kLabels, kClasses);
  const std::vector<float> hidden(kLargest * kWidth, 0.5f), of_labels(labels.size(), 0.5f),
      of_examples(kLargest, 0.5f);
  std::vector<float> kernel(kClasses * kWidth, 0.5f), hidden_gradient(hidden.size());
  Expect([&](int64_t batch, const Execution& execution) {
    const RowUpdater updater(kSgd, nullptr, execution.rows);
    SoftmaxUpdate({kernel.data(), nullptr, false, kClasses, kWidth},
                  {{kernel.data(), false, kWidth, {nullptr, nullptr}, nullptr}, {}},
                  {hidden.data(), labels.data(), of_examples.data(), of_labels.data(),
                   of_examples.data(), nullptr, batch, kLabels, false},
                  &updater, execution, hidden_gradient.data());
  });
  for (const int64_t num_expected : {0, 50}) {
    constexpr int64_t kBest = 20;
    const KeepRule rule = {{1, 2}, 1.0f / 50, num_expected};
    std::vector<float> scores(kLargest * kBest), logits(labels.size()), logsumexp(kLargest);
    std::vector<int64_t> ids(scores.size()), ranks(labels.size());
    Expect([&](int64_t batch, const Execution& execution) {
      StreamedLogitsInputs inputs = {};
      inputs.hidden = hidden.data();
      inputs.kernel = kernel.data();
      inputs.labels = labels.data();
      inputs.batch = batch;
      inputs.width = kWidth;
      inputs.num_classes = kClasses;
      inputs.num_labels = kLabels;
      inputs.k = kBest;
      inputs.shard = {0, 1, kClasses};
      inputs.keep = num_expected == 0 ? nullptr : &rule;
      KeptProbabilities kept;
      StreamedLogits(
          inputs, execution,
          {logsumexp.data(), logits.data(), ranks.data(), scores.data(), ids.data(), &kept});
    });
  }
}

void Hashes() {
  std::mt19937 random(1);
  const Functions functions = Functions::Winners(kWidth, 4, 1, 3, 20, random);
  const HashFamily& family = functions.family;
  const Floats rows = SparseRows(kClasses * kWidth, random);
  Index index(family, kClasses);
  int64_t moved = 0;
  index.Update(rows, 0, family.num_tables, 1, &moved);
  Ids codes(kClasses * family.num_tables), order(family.num_tables);
  std::iota(order.begin(), order.end(), 0);
  const std::vector<uint32_t> rotations(order.size());
  std::vector<int64_t> ids(kLargest * 100), votes(100);
  BucketVotes of_op;
  for (const bool own : {false, true}) {
    Expect([&](int64_t batch, const Execution& execution) {
      HashCodes(family, {rows.data(), nullptr, false, batch, kWidth}, execution, codes.data());
      const BucketQueries queries = {codes.data(),     batch,    1,   order.data(),
                                     rotations.data(), kClasses, 100, 1};
      if (own) {
        OwnBucketCandidates(index.Tables(), queries, execution, ids.data(), nullptr);
      } else {
        of_op.Candidates(index.Tables(), queries, 0, execution, ids.data(), votes.data());
      }
    });
  }
  int32_t now = 2;
  Expect([&](int64_t batch, const Execution& execution) {  // more tables, or fewer
    UpdateTables(family, {rows.data(), nullptr, false, kClasses, kWidth},
                 {index.touched_at.data(), index.built_at.data()}, 0, batch / kStep, now++,
                 index.Tables(), execution, &moved);
  });
}

void FactoredSteps() {
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

void Others() {
  const std::vector<float> rows(kLargest * 1000, 1.5f);
  std::vector<float> mean(1000);
  Expect([&](int64_t size, const Execution& execution) {
    MeanOfRows(rows.data(), false, 10, 3 * size, execution, mean.data());
  });
  constexpr int64_t kWords = 8, kPairs = kWords * kWords;
  std::vector<int32_t> codes(kPairs), starts(kPairs + 1);
  std::iota(codes.begin(), codes.end(), 0);
  std::iota(starts.begin(), starts.end(), 0);
  const std::vector<int64_t> sums(starts.begin(), starts.end());
  const std::vector<double> scores(10 * kWords), uniform(10 * kLargest * 3 * 10, 0.5);
  std::vector<int64_t> ids(10 * kLargest * 10);
  std::vector<double> log_probability(ids.size());
  Expect([&](int64_t size, const Execution& execution) {
    const MultiIndexDraws draws = {scores.data(), scores.data(), uniform.data(), 10, 10 * size};
    draws.Run({codes.data(), codes.data(), starts.data(), sums.data(), kPairs, kWords}, execution,
              ids.data(), log_probability.data());
  });
}

}  // namespace tfx::core

int main() {
  for (const bool own : {false, true}) tfx::core::Candidates(own);
  tfx::core::Softmax();
  tfx::core::Hashes();
  tfx::core::FactoredSteps();
  tfx::core::Others();
  return tfx::test::Result();
}
