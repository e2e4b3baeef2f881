// SPDX-License-Identifier: Apache-2.0
//
// The GPU's streamed logits against those of the processor.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/gpu/streamed_logits.h"
#include "core/streamed_logits.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/streamed_logits_problem.h"

namespace tfx::core {
namespace {

using gpu::Precision;
using test::DeviceArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Results = test::StreamedLogitsResults;

std::vector<uint16_t> ToBfloat16(const std::vector<float>& numbers) {
  std::vector<uint16_t> halves;
  for (const float& x : numbers) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    halves.push_back(static_cast<uint16_t>(bits >> 16));
  }
  return halves;
}

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

  Results OnGpu(Precision precision = Precision::kFloat32, bool is_bfloat16 = false) const {
    Results r(inputs);
    const DeviceArray<float> h(hidden), w(kernel), b(bias), target_scores(scores);
    const DeviceArray<uint16_t> half_w(ToBfloat16(kernel)), half_b(ToBfloat16(bias));
    const DeviceArray<int64_t> ids(labels);
    const DeviceArray<float> logsumexp(r.logsumexp), targets(r.target_logits), top(r.top_scores);
    const DeviceArray<int64_t> ranks(r.target_ranks), top_ids(r.top_ids);
    StreamedLogitsInputs in = inputs;
    in.hidden = h.data();
    in.kernel = w.data();
    in.bias = has_bias ? b.data() : nullptr;
    in.is_bfloat16 = is_bfloat16;
    if (is_bfloat16) in.kernel = half_w.data();
    if (is_bfloat16 && has_bias) in.bias = half_b.data();
    in.labels = ids.data();
    in.target_scores = scores.empty() ? nullptr : target_scores.data();
    const DeviceArray<double> scratch(
        gpu::StreamedLogitsScratchBytes(in, precision) / sizeof(double) + 1);
    const gpu::Error error = gpu::StreamedLogits(
        nullptr, in, precision, scratch.data(),
        {logsumexp.data(), targets.data(), ranks.data(), top.data(), top_ids.data(), nullptr});
    EXPECT(error.ok());
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

void ExpectSame(const Results& gpu, const Results& processor) {
  EXPECT(Same(gpu.target_logits, processor.target_logits));
  EXPECT(gpu.target_ranks == processor.target_ranks);
  EXPECT(Same(gpu.top_scores, processor.top_scores));
  EXPECT(gpu.top_ids == processor.top_ids);
  for (size_t i = 0; i < gpu.logsumexp.size(); ++i) {
    const float a = gpu.logsumexp[i], b = processor.logsumexp[i];
    EXPECT(Same(a, b) || std::abs(a - b) <= 1e-6f * (1 + std::abs(b)));
  }
}

void AgreesWithTheProcessor(const Problem& problem) {
  ExpectSame(problem.OnGpu(), problem.OnProcessor());
}

// Small whole numbers are as exact in both.
void Tf32AndBfloat16() {
  const Problem problem(3, 5, 4500, 2, 10);
  ExpectSame(problem.OnGpu(Precision::kTf32), problem.OnProcessor());
  ExpectSame(problem.OnGpu(Precision::kFloat32, true), problem.OnProcessor());
}

// TF32 rounds factors, on a device where the library finds that it pays; bfloat16 weights are
// widened, not hidden activations rounded.
void Rounding() {
  Problem problem(2, 3, 50, 1, 5);
  for (float& h : problem.hidden) h += 1.f / (1 << 14);
  const Results exact = problem.OnProcessor();
  const Results rounded = problem.OnGpu(Precision::kTf32);
#ifndef __CUDACC__
  EXPECT(!Same(rounded.top_scores, exact.top_scores));
#endif
  // Three products of factors below 4, each of which is rounded by 2^-11 of itself at most.
  for (size_t i = 0; i < exact.top_scores.size(); ++i) {
    EXPECT(std::abs(rounded.top_scores[i] - exact.top_scores[i]) <= 3 * 16 * 0x1p-10f);
  }
  EXPECT(Same(problem.OnGpu(Precision::kFloat32, true).top_scores, exact.top_scores));
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

// Device memory is bounded, be there ever so many classes.
void MemoryIsBounded() {
  for (const auto& [batch, width] :
       {std::pair<int64_t, int64_t>{1, 256}, {1, 1}, {3, 20000}, {4000, 64}}) {
    StreamedLogitsInputs in = Problem(0, 0, 1, 0, 0).inputs;
    in.batch = batch;
    in.width = width;
    in.num_classes = 1 << 24;
    in.is_bfloat16 = true;
    const int64_t block = int64_t{32} << 20, least = int64_t{16} << 10;
    const int64_t logits = std::max(block, least * batch), copy = std::max(block, least * width);
    const int64_t bytes = gpu::StreamedLogitsScratchBytes(in, Precision::kFloat32);
    EXPECT(bytes <= logits + copy + (1 << 17));
    in.is_bfloat16 = false;
    EXPECT(gpu::StreamedLogitsScratchBytes(in, Precision::kFloat32) <= logits + (1 << 17));
  }
}

#ifndef __CUDACC__
// What went wrong before is not put down to the call.
void EarlierErrors() {
  last_cuda_error = cudaSuccess + 1;
  AgreesWithTheProcessor(Problem(2, 3, 50, 1, 5));
}
#endif

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
  tfx::core::Tf32AndBfloat16();
  tfx::core::Rounding();
  tfx::core::WithoutBias();
  tfx::core::ManyOfTheBest();
  tfx::core::NotNumbers();
  tfx::core::LargeLogits();
  tfx::core::Shards();
  tfx::core::LabelsWithoutARow();
  tfx::core::MemoryIsBounded();
#ifndef __CUDACC__
  tfx::core::EarlierErrors();
#endif
  return tfx::test::Result();
}
