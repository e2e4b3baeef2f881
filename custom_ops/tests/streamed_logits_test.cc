// SPDX-License-Identifier: Apache-2.0

#include "core/streamed_logits.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/top_k_heap.h"
#include "tests/expect.h"
#include "tests/streamed_logits_problem.h"
#include "tests/workers.h"

namespace tfx::core {

struct Results : test::StreamedLogitsResults {
  using StreamedLogitsResults::StreamedLogitsResults;

  KeptProbabilities kept;

  bool operator==(const Results& other) const {
    return logsumexp == other.logsumexp && target_logits == other.target_logits &&
           top_scores == other.top_scores && target_ranks == other.target_ranks &&
           top_ids == other.top_ids && kept.begin == other.kept.begin &&
           kept.ids == other.kept.ids && kept.weights == other.kept.weights &&
           kept.logits == other.kept.logits && kept.keys == other.kept.keys;
  }
};

// Every instruction set must agree to the last bit, except for the logsumexp.
struct Problem : test::WholeNumbers {
  using WholeNumbers::WholeNumbers;

  Results Run(InstructionSet set, int num_workers) const {
    Results r(inputs);
    const Workers workers(set, num_workers);
    StreamedLogits(OnHost(), workers.execution, r.Outputs(&r.kept));
    return r;
  }
};

void AgreesWithTheDefinition(const Problem& problem, const Results& results) {
  const StreamedLogitsInputs in = problem.OnHost();
  const int64_t num_classes = in.weights.num_classes, width = in.weights.width;
  for (int64_t b = 0; b < in.batch; ++b) {
    std::vector<float> logits = problem.bias;
    double sum = 0;
    for (int64_t c = 0; c < num_classes; ++c) {
      for (int64_t d = 0; d < width; ++d) {
        logits[c] += problem.kernel[c * width + d] * problem.hidden[b * width + d];
      }
      sum += std::exp(static_cast<double>(logits[c]));
    }
    EXPECT(std::abs(results.logsumexp[b] - std::log(sum)) <= 1e-6 * (1 + std::log(sum)));
    const auto rank_of = [&](int64_t id) {
      int64_t rank = 0;
      for (int64_t c = 0; c < num_classes; ++c) {
        rank += logits[c] > logits[id] || (logits[c] == logits[id] && c < id);
      }
      return rank;
    };
    for (int64_t i = b * in.num_labels; i < (b + 1) * in.num_labels; ++i) {
      const int64_t id = in.labels[i];
      EXPECT(results.target_ranks[i] == (id < 0 ? -1 : rank_of(id)));
      EXPECT(results.target_logits[i] == (id < 0 ? 0.0f : logits[id]));
    }
    for (int64_t i = 0; i < in.k; ++i) {
      const int64_t id = results.top_ids[b * in.k + i];
      EXPECT(rank_of(id) == i);
      EXPECT(results.top_scores[b * in.k + i] == logits[id]);
    }
  }
}

// The best k of the classes that each example may find, and of every class where it says nothing.
void FiltersTheBest(InstructionSet set) {
  Problem problem(33, 5, 1009, 0, 9);
  const int64_t batch = 33, num_classes = 1009, num_excluded = 40;
  std::vector<int64_t> excluded(batch * num_excluded);
  for (int64_t i = 0; i < batch * num_excluded; ++i) excluded[i] = (i * 7919) % 1010 - 1;
  std::vector<int32_t> groups(num_classes), wanted(batch);
  for (int64_t c = 0; c < num_classes; ++c) groups[c] = static_cast<int32_t>(c % 5) - 1;
  for (int64_t b = 0; b < batch; ++b) wanted[b] = static_cast<int32_t>(b % 5) - 1;
  const ClassFilter filter = {excluded.data(), num_excluded, groups.data(), wanted.data()};
  const Results plain = problem.Run(set, 1);
  problem.inputs.filter = &filter;
  const Results one = problem.Run(set, 1);
  EXPECT(problem.Run(set, 3) == one);
  EXPECT(one.logsumexp == plain.logsumexp);
  const StreamedLogitsInputs in = problem.OnHost();
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<ScoredClass> found;
    for (int32_t c = 0; c < num_classes; ++c) {
      const auto own = excluded.begin() + b * num_excluded;
      if (std::find(own, own + num_excluded, c) != own + num_excluded) continue;
      if (groups[c] < 0 || (wanted[b] >= 0 && groups[c] != wanted[b])) continue;
      float logit = problem.bias[c];
      for (int64_t d = 0; d < 5; ++d)
        logit += problem.kernel[c * 5 + d] * problem.hidden[b * 5 + d];
      found.push_back({logit, c});
    }
    std::sort(found.begin(), found.end(), RanksAbove);
    for (int64_t i = 0; i < in.k; ++i) {
      EXPECT(one.top_ids[b * in.k + i] == found[i].id);
      EXPECT(one.top_scores[b * in.k + i] == found[i].score);
    }
  }
}

// As parallel as can be: sanitizers see every race.
void TestAll(const Problem& problem) {
  for (InstructionSet set : InstructionSets()) {
    const Results one_worker = problem.Run(set, 1);
    AgreesWithTheDefinition(problem, one_worker);
    EXPECT(problem.Run(set, 3) == one_worker);
  }
}

// The number of classes after a label with the same logit.
int64_t Ties(const Problem& problem, size_t at) {
  const StreamedLogitsInputs in = problem.OnHost();
  const float* h = in.hidden + at / in.num_labels * in.weights.width;
  const auto logit = [&](int64_t c) {
    float sum = problem.bias[c];
    for (int64_t d = 0; d < in.weights.width; ++d)
      sum += problem.kernel[c * in.weights.width + d] * h[d];
    return sum;
  };
  int64_t ties = 0;
  for (int64_t c = problem.labels[at] + 1; c < in.weights.num_classes; ++c) {
    ties += logit(c) == logit(problem.labels[at]);
  }
  return ties;
}

void Test(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels, int64_t k) {
  TestAll(Problem(batch, width, num_classes, num_labels, k));
}

// Logits of shards, and their ranks among given scores, add up to the layer's.
void ShardsAddUp(InstructionSet set) {
  Problem layer(33, 5, 1009, 3, 9);
  for (float& h : layer.hidden) h = h > 0 ? 1.0f : 0.0f;  // ties are frequent
  const Results whole = layer.Run(set, 2);
  std::vector<Problem> shards;
  const int64_t stride = 3, width = layer.inputs.weights.width;
  for (int64_t first = 0; first < stride; ++first) {
    Problem& shard = shards.emplace_back(33, 5, (1009 - first + stride - 1) / stride, 3, 9);
    shard.hidden = layer.hidden;
    shard.labels = layer.labels;
    shard.inputs.shard = {first, stride, shard.inputs.weights.num_classes};
    for (int64_t row = 0; row < shard.inputs.weights.num_classes; ++row) {
      const int64_t c = shard.inputs.shard.ClassOf(row);
      std::copy_n(layer.kernel.begin() + c * width, width, shard.kernel.begin() + row * width);
      shard.bias[row] = layer.bias[c];
    }
  }
  std::vector<float> scores(layer.labels.size());
  for (Problem& shard : shards) {
    const Results found = shard.Run(set, 2);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] += found.target_logits[i];
  }
  EXPECT(scores == whole.target_logits);
  for (const float off : {0.0f, -0.25f}) {  // a score that is too low: labels still don't beat it
    std::vector<float> given = scores;
    for (float& score : given) score += off;
    std::vector<int64_t> ranks(scores.size());
    std::vector<ScoredClass> best;
    for (Problem& shard : shards) {
      shard.scores = given;
      const Results found = shard.Run(set, 2);
      for (size_t i = 0; i < ranks.size(); ++i)
        ranks[i] += std::max<int64_t>(found.target_ranks[i], 0);
      for (int64_t i = 0; i < 9; ++i) {
        best.push_back({found.top_scores[i], static_cast<int32_t>(found.top_ids[i])});
      }
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      int64_t expected = std::max<int64_t>(whole.target_ranks[i], 0);
      if (layer.labels[i] >= 0 && off != 0) expected += Ties(layer, i);
      EXPECT(ranks[i] == expected);
    }
    std::sort(best.begin(), best.end(), RanksAbove);
    for (int64_t i = 0; i < 9; ++i) EXPECT(best[i].id == whole.top_ids[i]);
  }
}

// Which entries are kept depends neither on the instruction set nor on the number of workers, and
// as many as are expected.
void TestKeptEntries(int64_t batch, int64_t width, int64_t num_classes, int64_t num_expected) {
  Problem problem(batch, width, num_classes, 2, 0);
  const KeepRule rule = {{1, 2}, 1.0f / num_expected, num_expected};
  problem.inputs.keep = &rule;
  const Results first = problem.Run(InstructionSet::kBaseline, 1);
  AgreesWithTheDefinition(problem, first);
  const int64_t most = batch * num_expected;
  const int64_t size = first.kept.ids.size();
  EXPECT(size <= most + 5 * std::sqrt(most));
  for (InstructionSet set : InstructionSets()) {
    const Results one_worker = problem.Run(set, 1);
    EXPECT(one_worker.kept.begin == first.kept.begin && one_worker.kept.ids == first.kept.ids);
    EXPECT(problem.Run(set, 3) == one_worker);
  }
}

// A heap that isn't full must take minus infinity too, whichever worker it belongs to.
TEST(TestMaskedClasses) {
  Problem problem(6, 3, 200000, 1, 9);
  for (size_t c = 2; c < problem.bias.size(); ++c) problem.bias[c] = -INFINITY;
  TestAll(problem);
}

TEST(All) {
  Test(1, 1, 1, 1, 1);
  Test(7, 3, 1009, 5, 1009);
  Test(33, 65, 1009, 2, 5);
  Test(4, 65, 1009, 2, 5);
  Test(50, 17, 123, 0, 7);
  Test(3, 5, 2000, 40, 0);
  Test(0, 5, 10, 2, 3);
  Test(4, 0, 10, 2, 3);
  TestKeptEntries(33, 5, 5009, 60);
  TestKeptEntries(3, 1, 70001, 1);
  TestKeptEntries(300, 4, 20000, 200);
  TestKeptEntries(0, 5, 100, 7);
  for (InstructionSet set : InstructionSets()) {
    ShardsAddUp(set);
    FiltersTheBest(set);
  }
}

}  // namespace tfx::core
