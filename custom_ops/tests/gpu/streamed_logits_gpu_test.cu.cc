// SPDX-License-Identifier: Apache-2.0
//
// Compares streamed logits on a GPU and on the processor.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "core/gpu/streamed_logits.h"
#include "core/streamed_logits.h"
#include "tests/bfloat16.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/streamed_logits_problem.h"
#include "tests/workers.h"

namespace tfx::core {
namespace {

using gpu::Precision;
using test::DeviceArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Results = test::StreamedLogitsResults;

struct Problem : test::WholeNumbers {
  using WholeNumbers::WholeNumbers;

  Results OnProcessor() const {
    Results r(inputs);
    StreamedLogits(OnHost(), Workers(InstructionSet::kBaseline).execution, r.Outputs(nullptr));
    return r;
  }

  Results OnGpu(Precision precision = Precision::kFloat32, bool is_bfloat16 = false) const {
    Results r(inputs);
    test::DeviceCopies of;
    const std::vector<uint16_t> half_kernel = test::Halves(kernel), half_bias = test::Halves(bias);
    StreamedLogitsInputs in = Inputs(of);
    in.weights.is_bfloat16 = is_bfloat16;
    if (is_bfloat16) in.weights.kernel = of(half_kernel);
    if (is_bfloat16 && has_bias) in.weights.bias = of(half_bias);
    const DeviceArray<double> scratch(
        gpu::StreamedLogitsScratchBytes(in, precision) / sizeof(double) + 1);
    const gpu::Error error =
        gpu::StreamedLogits(nullptr, in, precision, scratch.data(),
                            {of(r.logsumexp), of(r.target_logits), of(r.target_ranks),
                             of(r.top_scores), of(r.top_ids), nullptr});
    EXPECT(error.ok());
    for (auto* array : {&r.logsumexp, &r.target_logits, &r.top_scores}) of.Back(array);
    for (auto* array : {&r.target_ranks, &r.top_ids}) of.Back(array);
    return r;
  }
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
TEST(Tf32AndBfloat16) {
  const Problem problem(3, 5, 4500, 2, 10);
  ExpectSame(problem.OnGpu(Precision::kTf32), problem.OnProcessor());
  ExpectSame(problem.OnGpu(Precision::kFloat32, true), problem.OnProcessor());
}

// TF32 rounds factors, if the library finds it faster on a device; bfloat16 weights are widened,
// hidden activations are not rounded.
TEST(Rounding) {
  Problem problem(2, 3, 50, 1, 5);
  for (float& h : problem.hidden) h += 1.f / (1 << 14);
  const Results exact = problem.OnProcessor();
  const Results rounded = problem.OnGpu(Precision::kTf32);
#ifndef __CUDACC__
  EXPECT(!Same(rounded.top_scores, exact.top_scores));
#endif
  // Three products of factors below 4, each rounded with a relative error of at most 2^-11.
  for (size_t i = 0; i < exact.top_scores.size(); ++i) {
    EXPECT(std::abs(rounded.top_scores[i] - exact.top_scores[i]) <= 3 * 16 * 0x1p-10f);
  }
  EXPECT(Same(problem.OnGpu(Precision::kFloat32, true).top_scores, exact.top_scores));
}

TEST(WithoutBias) {
  Problem problem(5, 4, 600, 2, 3);
  problem.has_bias = false;
  AgreesWithTheProcessor(problem);
}

// Many equal logits, more of the best than fit into the room for them at a time.
TEST(ManyOfTheBest) {
  Problem rising(2, 1, 9000, 1, 700);
  rising.hidden = {1, -1};
  for (int64_t c = 0; c < 9000; ++c) rising.kernel[c] = static_cast<float>(c / 3);
  AgreesWithTheProcessor(rising);
  Problem equal(2, 3, 5000, 1, gpu::kMostBest);
  std::fill(equal.kernel.begin(), equal.kernel.end(), 0.f);
  std::fill(equal.bias.begin(), equal.bias.end(), -0.f);
  AgreesWithTheProcessor(equal);
}

TEST(NotNumbers) {
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

TEST(LargeLogits) {
  Problem problem(2, 1, 5000, 1, 4);
  problem.bias[3] = 3e4f;
  problem.bias[4999] = 3e4f;
  AgreesWithTheProcessor(problem);
}

TEST(Shards) {
  Problem shard(7, 3, 1500, 3, 5);
  shard.inputs.shard = {1, 3, 1500};
  for (int64_t& label : shard.labels) label = label < 0 ? -1 : 3 * label + label % 3;
  AgreesWithTheProcessor(shard);
  shard.scores.resize(shard.labels.size());
  for (size_t i = 0; i < shard.scores.size(); ++i) shard.scores[i] = static_cast<float>(i % 9);
  AgreesWithTheProcessor(shard);
}

TEST(LabelsWithoutARow) {
  Problem problem(1, 2, 10, 3, 0);
  problem.labels = {10, 1LL << 40, -7};
  const Results results = problem.OnGpu();
  EXPECT((results.target_ranks == std::vector<int64_t>{-1, -1, -1}));
  EXPECT((results.target_logits == std::vector<float>{0, 0, 0}));
}

// Device memory is bounded, be there ever so many classes.
TEST(MemoryIsBounded) {
  for (const auto& [batch, width] :
       {std::pair<int64_t, int64_t>{1, 256}, {1, 1}, {3, 20000}, {4000, 64}}) {
    StreamedLogitsInputs in = Problem(0, 0, 1, 0, 0).inputs;
    in.batch = batch;
    in.weights = {nullptr, nullptr, true, 1 << 24, width};
    const int64_t block = int64_t{32} << 20, least = int64_t{16} << 10;
    const int64_t logits = std::max(block, least * batch), copy = std::max(block, least * width);
    const int64_t bytes = gpu::StreamedLogitsScratchBytes(in, Precision::kFloat32);
    EXPECT(bytes <= logits + copy + (1 << 17));
    in.weights.is_bfloat16 = false;
    EXPECT(gpu::StreamedLogitsScratchBytes(in, Precision::kFloat32) <= logits + (1 << 17));
  }
}

#ifndef __CUDACC__
// An earlier error is not attributed to the call.
TEST(EarlierErrors) {
  last_cuda_error = cudaSuccess + 1;
  AgreesWithTheProcessor(Problem(2, 3, 50, 1, 5));
}
#endif

TEST(All) {
  for (const Problem& problem :
       {Problem(1, 1, 1, 1, 1), Problem(3, 5, 4097, 2, 10), Problem(70, 3, 1000, 3, 33),
        Problem(2, 4, 9000, 0, 1), Problem(2, 4, 300, 2, 0), Problem(0, 4, 30, 2, 3),
        Problem(3, 4, 0, 2, 0), Problem(2, 0, 5000, 1, 5)}) {
    AgreesWithTheProcessor(problem);
  }
}

}  // namespace
}  // namespace tfx::core
