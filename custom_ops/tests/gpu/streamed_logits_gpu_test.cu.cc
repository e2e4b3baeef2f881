// SPDX-License-Identifier: Apache-2.0
//
// The GPU's streamed logits against those of the processor.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/gpu/streamed_logits.h"
#include "core/streamed_logits.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/streamed_logits_problem.h"

namespace tfx::core {
namespace {

using test::DeviceArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Results = test::StreamedLogitsResults;

struct Problem : test::WholeNumbers {
  Problem(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels, int64_t k)
      : WholeNumbers(batch, width, num_classes, num_labels) {
    inputs.batch = batch;
    inputs.width = width;
    inputs.num_classes = num_classes;
    inputs.num_labels = num_labels;
    inputs.k = k;
    inputs.shard = {0, 1, num_classes};
  }

  Results OnProcessor() const {
    Results r(inputs);
    StreamedLogitsInputs in = inputs;
    in.hidden = hidden.data();
    in.kernel = kernel.data();
    in.bias = has_bias ? bias.data() : nullptr;
    in.labels = labels.data();
    in.target_scores = scores.empty() ? nullptr : scores.data();
    const ParallelFor one_after_another =
        [](int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t) { work(0, n); };
    Workspace workspace;
    StreamedLogits(in, Execution(InstructionSet::kBaseline, 1, one_after_another, workspace),
                   r.Outputs(nullptr));
    return r;
  }

  Results OnGpu() const {
    Results r(inputs);
    const DeviceArray<float> h(hidden), w(kernel), b(bias), target_scores(scores);
    const DeviceArray<int64_t> ids(labels);
    const DeviceArray<float> logsumexp(r.logsumexp), targets(r.target_logits), top(r.top_scores);
    const DeviceArray<int64_t> ranks(r.target_ranks), top_ids(r.top_ids);
    StreamedLogitsInputs in = inputs;
    in.hidden = h.data();
    in.kernel = w.data();
    in.bias = has_bias ? b.data() : nullptr;
    in.labels = ids.data();
    in.target_scores = scores.empty() ? nullptr : target_scores.data();
    const DeviceArray<double> scratch(gpu::StreamedLogitsScratchBytes(in) / sizeof(double) + 1);
    const char* error = gpu::StreamedLogits(
        nullptr, in, scratch.data(),
        {logsumexp.data(), targets.data(), ranks.data(), top.data(), top_ids.data(), nullptr});
    EXPECT(error == nullptr);
    r.logsumexp = logsumexp.Values();
    r.target_logits = targets.Values();
    r.target_ranks = ranks.Values();
    r.top_scores = top.Values();
    r.top_ids = top_ids.Values();
    return r;
  }

  std::vector<float> scores;
  StreamedLogitsInputs inputs = {};
  bool has_bias = true;
};

bool Same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) same = Same(a[i], b[i]);
  return same;
}

void AgreesWithTheProcessor(const Problem& problem) {
  const Results gpu = problem.OnGpu(), processor = problem.OnProcessor();
  EXPECT(Same(gpu.target_logits, processor.target_logits));
  EXPECT(gpu.target_ranks == processor.target_ranks);
  EXPECT(Same(gpu.top_scores, processor.top_scores));
  EXPECT(gpu.top_ids == processor.top_ids);
  for (size_t i = 0; i < gpu.logsumexp.size(); ++i) {
    const float a = gpu.logsumexp[i], b = processor.logsumexp[i];
    EXPECT(Same(a, b) || std::abs(a - b) <= 1e-6f * (1 + std::abs(b)));
  }
}

void WithoutBias() {
  Problem problem(5, 4, 600, 2, 3);
  problem.has_bias = false;
  AgreesWithTheProcessor(problem);
}

// Many equal logits, more of the best than fit into the room for them at a time.
void ManyOfTheBest() {
  Problem rising(2, 1, 9000, 1, 700);
  rising.hidden = {1, -1};
  for (int64_t c = 0; c < 9000; ++c) rising.kernel[c] = static_cast<float>(c / 3);
  AgreesWithTheProcessor(rising);
  Problem equal(2, 3, 5000, 1, gpu::kMostBest);
  std::fill(equal.kernel.begin(), equal.kernel.end(), 0.f);
  std::fill(equal.bias.begin(), equal.bias.end(), -0.f);
  AgreesWithTheProcessor(equal);
}

void NotNumbers() {
  for (float strange : {std::nanf(""), kInfinity, -kInfinity}) {
    Problem one(3, 2, 5000, 2, 9);
    one.bias[4500] = strange;
    one.labels[0] = 4500;
    AgreesWithTheProcessor(one);
    Problem all(2, 2, 700, 1, 9);
    std::fill(all.bias.begin(), all.bias.end(), strange);
    AgreesWithTheProcessor(all);
  }
  Problem both(1, 1, 4200, 0, 2);
  both.bias[1] = kInfinity;
  both.bias[4199] = std::nanf("");
  AgreesWithTheProcessor(both);
}

void LargeLogits() {
  Problem problem(2, 1, 5000, 1, 4);
  problem.bias[3] = 3e4f;
  problem.bias[4999] = 3e4f;
  AgreesWithTheProcessor(problem);
}

void Shards() {
  Problem shard(7, 3, 1500, 3, 5);
  shard.inputs.shard = {1, 3, 1500};
  for (int64_t& label : shard.labels) label = label < 0 ? -1 : 3 * label + label % 3;
  AgreesWithTheProcessor(shard);
  shard.scores.resize(shard.labels.size());
  for (size_t i = 0; i < shard.scores.size(); ++i) shard.scores[i] = static_cast<float>(i % 9);
  AgreesWithTheProcessor(shard);
}

void LabelsWithoutARow() {
  Problem problem(1, 2, 10, 3, 0);
  problem.labels = {10, 1LL << 40, -7};
  const Results results = problem.OnGpu();
  EXPECT((results.target_ranks == std::vector<int64_t>{-1, -1, -1}));
  EXPECT((results.target_logits == std::vector<float>{0, 0, 0}));
}

}  // namespace
}  // namespace tfx::core

int main() {
  using tfx::core::Problem;
  for (const Problem& problem :
       {Problem(1, 1, 1, 1, 1), Problem(3, 5, 4097, 2, 10), Problem(70, 3, 1000, 3, 33),
        Problem(2, 4, 9000, 0, 1), Problem(2, 4, 300, 2, 0), Problem(0, 4, 30, 2, 3),
        Problem(3, 4, 0, 2, 0), Problem(2, 0, 5000, 1, 5)}) {
    AgreesWithTheProcessor(problem);
  }
  tfx::core::WithoutBias();
  tfx::core::ManyOfTheBest();
  tfx::core::NotNumbers();
  tfx::core::LargeLogits();
  tfx::core::Shards();
  tfx::core::LabelsWithoutARow();
  return tfx::test::Result();
}
