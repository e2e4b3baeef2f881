// SPDX-License-Identifier: Apache-2.0
//
// Calls of algorithms with all their inputs, on any number of examples of a batch: for tests of
// their memory.

#ifndef TFX_LARGEOUT_TESTS_CALLS_H_
#define TFX_LARGEOUT_TESTS_CALLS_H_

#include <cmath>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include "core/bucket_candidates.h"
#include "core/candidate_logits.h"
#include "core/candidate_update.h"
#include "core/multi_index_draws.h"
#include "core/softmax_update.h"
#include "core/streamed_logits.h"
#include "tests/candidate_problem.h"
#include "tests/hash_problem.h"
#include "tests/softmax_update_problem.h"
#include "tests/streamed_logits_problem.h"

namespace tfx::core {

constexpr RowStep kSgd = {RowMethod::kSgd, 1e-3f, 1, INFINITY, 0, 0, 1, 1, 0, false};

// W and b of a problem, changed by a step.
template <typename Problem>
LayerRows RowsOf(Problem& problem, int64_t width) {
  return {{problem.kernel.data(), false, width, {nullptr, nullptr}, nullptr},
          {problem.bias.data(), false, 1, {nullptr, nullptr}, nullptr}};
}

struct CandidateCalls {
  CandidateCalls(const test::CandidateSizes& sizes, bool own)
      : problem(sizes, own, /*padding=*/0.01, /*scale=*/1, /*seed=*/1),
        hits(problem.gradient.size()),
        true_logits(problem.labels.size()),
        logits(hits.size()),
        hidden_gradient(problem.hidden.size()) {}

  CandidateBatch Batch(int64_t size) const {
    CandidateBatch batch = problem.Batch();
    batch.size = size;
    return batch;
  }

  void Logits(int64_t size, const Execution& execution) {
    CandidateLogits(problem.Weights(), Batch(size), execution,
                    {true_logits.data(), logits.data(), reinterpret_cast<bool*>(hits.data())});
  }

  void Update(int64_t size, const Execution& execution) {
    const RowUpdater updater(kSgd, nullptr, execution.rows);
    CandidateUpdate(problem.Weights(), RowsOf(problem, problem.size.width), Batch(size),
                    {problem.true_gradient.data(), problem.gradient.data()}, &updater, execution,
                    hidden_gradient.data());
  }

  auto State() const { return std::tuple(problem.kernel, problem.bias); }

  test::CandidateProblem problem;
  std::vector<uint8_t> hits;
  std::vector<float> true_logits, logits, hidden_gradient;
};

struct SoftmaxCalls {
  SoftmaxCalls(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels)
      : problem(batch, width, num_classes, num_labels), hidden_gradient(problem.hidden.size()) {}

  void Update(int64_t size, const Execution& execution) {
    const RowUpdater updater(kSgd, nullptr, execution.rows);
    SoftmaxBatch batch =
        problem.Batch([](const auto& array) { return array.data(); }, true, /*rounds=*/false);
    batch.size = size;
    SoftmaxUpdate(
        {problem.kernel.data(), problem.bias.data(), false, problem.num_classes, problem.width},
        RowsOf(problem, problem.width), batch, &updater, execution, hidden_gradient.data());
  }

  auto State() const { return std::tuple(problem.kernel, problem.bias); }

  test::SoftmaxUpdateProblem problem;
  std::vector<float> hidden_gradient;
};

struct StreamedCalls {
  StreamedCalls(const test::WholeNumbers& of, bool rounds, const KeepRule* keep)
      : problem(of), results(problem.inputs) {
    problem.inputs.rounds = rounds;
    problem.inputs.keep = keep;
  }

  void Run(int64_t size, const Execution& execution) {
    StreamedLogitsInputs inputs = problem.OnHost();
    inputs.batch = size;
    KeptProbabilities kept;
    StreamedLogits(inputs, execution, results.Outputs(&kept));
    num_kept = kept.ids.size();
  }

  test::WholeNumbers problem;
  test::StreamedLogitsResults results;
  size_t num_kept = 0;
};

struct HashCalls {
  HashCalls(const HashFamily& of, int64_t num_classes, int64_t num_queries, int64_t budget,
            std::mt19937& random)
      : family(of),
        rows(SparseRows(num_classes * of.width, random)),
        index(of, num_classes),
        codes(num_queries * of.num_tables),
        order(of.num_tables),
        rotations(of.num_tables),
        ids(num_queries * budget),
        votes(budget) {
    std::iota(order.begin(), order.end(), 0);
  }

  void Codes(int64_t n, const Execution& execution) {
    HashCodes(family, {rows.data(), nullptr, false, n, family.width}, execution, codes.data());
  }

  void Update(int64_t num_tables, int32_t now, const std::vector<int64_t>& touched,
              const Execution& execution) {
    UpdateTables(family, {rows.data(), nullptr, false, index.num_classes, family.width},
                 {index.touched_at.data(), index.built_at.data()}, 0, num_tables, now,
                 index.Tables(), execution, &moved, touched.data(), touched.size());
  }

  BucketQueries Queries(int64_t n) const {
    return {codes.data(),
            n,
            1,
            order.data(),
            rotations.data(),
            /*most_of_bucket=*/index.num_classes,
            /*budget=*/static_cast<int64_t>(votes.size()),
            1};
  }

  bool Own(int64_t n, const Execution& execution) {
    return OwnBucketCandidates(index.Tables(), Queries(n), execution, ids.data(), nullptr);
  }

  bool Voted(int64_t n, const Execution& execution, BucketVotes* of_op) {
    return of_op->Candidates(index.Tables(), Queries(n), 5, execution, ids.data(), votes.data());
  }

  auto State() const {
    return std::tuple(index.entries, index.starts, index.touched_at, index.built_at, moved);
  }

  const HashFamily& family;
  const Floats rows;
  Index index;
  Ids codes, order;
  std::vector<uint32_t> rotations;
  std::vector<int64_t> ids, votes;
  int64_t moved = 0;
};

// Draws of classes; each pair of words has one class.
struct DrawCalls {
  DrawCalls(int64_t num_words, int64_t batch, int64_t num_draws)
      : num_words(num_words),
        batch(batch),
        codes(num_words * num_words),
        starts(codes.size() + 1),
        scores(batch * num_words),
        uniform(batch * num_draws * 3, 0.5),
        log_probability(batch * num_draws),
        ids(batch * num_draws) {
    std::iota(codes.begin(), codes.end(), 0);
    std::iota(starts.begin(), starts.end(), 0);
    sums.assign(starts.begin(), starts.end());
  }

  bool Run(int64_t num_draws, const Execution& execution) {
    const MultiIndexDraws draws = {scores.data(), scores.data(), uniform.data(), batch, num_draws};
    return draws.Run({codes.data(), codes.data(), starts.data(), sums.data(),
                      static_cast<int64_t>(codes.size()), num_words},
                     execution, ids.data(), log_probability.data());
  }

  const int64_t num_words, batch;
  Ids codes, starts;
  std::vector<double> scores, uniform, log_probability;
  std::vector<int64_t> ids, sums;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_TESTS_CALLS_H_
