// SPDX-License-Identifier: Apache-2.0

#include "core/streamed_logits.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

struct Results {
  std::vector<float> logsumexp, target_logits, top_scores;
  std::vector<int64_t> target_ranks, top_ids;

  bool operator==(const Results& other) const {
    return logsumexp == other.logsumexp && target_logits == other.target_logits &&
           top_scores == other.top_scores && target_ranks == other.target_ranks &&
           top_ids == other.top_ids;
  }
};

// Whole numbers, so that every instruction set must agree to the last bit but for the logsumexp.
struct Problem {
  Problem(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels, int64_t k)
      : hidden(batch * width),
        kernel(num_classes * width),
        bias(num_classes),
        labels(batch * num_labels) {
    std::mt19937 random(3);
    for (auto* array : {&hidden, &kernel, &bias}) {
      for (float& x : *array) x = static_cast<float>(random() % 7) - 3;
    }
    for (int64_t& label : labels) label = static_cast<int64_t>(random() % (num_classes + 1)) - 1;
    inputs = {hidden.data(), kernel.data(), bias.data(), false,      labels.data(),
              batch,         width,         num_classes, num_labels, k};
  }

  Results Run(InstructionSet set, int num_workers) const {
    Results r;
    r.logsumexp.resize(inputs.batch);
    r.target_logits.resize(labels.size());
    r.target_ranks.resize(labels.size());
    r.top_scores.resize(inputs.batch * inputs.k);
    r.top_ids.resize(inputs.batch * inputs.k);
    const ParallelFor on_threads = OneThreadAnIndex;
    Workspace workspace;
    StreamedLogits(inputs, Execution(set, num_workers, on_threads, workspace),
                   {r.logsumexp.data(), r.target_logits.data(), r.target_ranks.data(),
                    r.top_scores.data(), r.top_ids.data()});
    return r;
  }

  // As parallel as can be: sanitizers see every race.
  static void OneThreadAnIndex(int64_t n, const std::function<void(int64_t, int64_t)>& work,
                               int64_t) {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < n; ++i) threads.emplace_back(work, i, i + 1);
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<float> hidden, kernel, bias;
  std::vector<int64_t> labels;
  StreamedLogitsInputs inputs;
};

void AgreesWithTheDefinition(const Problem& problem, const Results& results) {
  const StreamedLogitsInputs& in = problem.inputs;
  for (int64_t b = 0; b < in.batch; ++b) {
    std::vector<float> logits(in.num_classes);
    double sum = 0;
    for (int64_t c = 0; c < in.num_classes; ++c) {
      logits[c] = problem.bias[c];
      for (int64_t d = 0; d < in.width; ++d) {
        logits[c] += problem.kernel[c * in.width + d] * problem.hidden[b * in.width + d];
      }
      sum += std::exp(static_cast<double>(logits[c]));
    }
    EXPECT(std::abs(results.logsumexp[b] - std::log(sum)) <= 1e-6 * (1 + std::log(sum)));
    const auto rank_of = [&](int64_t id) {
      int64_t rank = 0;
      for (int64_t c = 0; c < in.num_classes; ++c) {
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

void TestAll(const Problem& problem) {
  for (InstructionSet set :
       {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (!Supports(set)) continue;
    const Results one_worker = problem.Run(set, 1);
    AgreesWithTheDefinition(problem, one_worker);
    EXPECT(problem.Run(set, 3) == one_worker);
  }
}

void Test(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels, int64_t k) {
  TestAll(Problem(batch, width, num_classes, num_labels, k));
}

// A heap that isn't full must take minus infinity too, whichever worker it belongs to.
void TestMaskedClasses() {
  Problem problem(6, 3, 200000, 1, 9);
  for (size_t c = 2; c < problem.bias.size(); ++c) problem.bias[c] = -INFINITY;
  TestAll(problem);
}

}  // namespace tfx::core

int main() {
  using tfx::core::Test;
  Test(1, 1, 1, 1, 1);
  Test(7, 3, 1009, 5, 1009);
  Test(33, 65, 1009, 2, 5);
  Test(4, 65, 1009, 2, 5);
  Test(50, 17, 123, 0, 7);
  Test(3, 5, 2000, 40, 0);
  Test(0, 5, 10, 2, 3);
  Test(4, 0, 10, 2, 3);
  tfx::core::TestMaskedClasses();
  return tfx::test::Result();
}
