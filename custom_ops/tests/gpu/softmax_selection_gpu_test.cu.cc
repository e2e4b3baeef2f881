// SPDX-License-Identifier: Apache-2.0
//
// Entries of the softmax selected by the GPU and by the processor.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "core/gpu/softmax_selection.h"
#include "core/streamed_logits.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/streamed_logits_problem.h"
#include "tests/workers.h"

namespace tfx::core {
namespace {

using gpu::Precision;
using test::DeviceArray;

struct Selection {
  std::vector<float> logsumexp, target_logits;
  int64_t size = 0;  // S'
  std::vector<int64_t> ids;
  std::vector<float> weights, logits, keys;
  int num_sweeps = 0;
};

struct Problem : test::WholeNumbers {
  Problem(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels,
          int64_t num_selected)
      : WholeNumbers(batch, width, num_classes, num_labels, 0) {
    const bool keeps_all = num_selected == num_classes;
    rule = {{5, 6}, keeps_all ? 0 : 1.0f / static_cast<float>(num_selected), num_selected};
  }

  template <typename Of>
  StreamedLogitsInputs WithRule(Of&& of) const {
    StreamedLogitsInputs in = Inputs(of);
    in.keep = rule.num_expected == 0 ? nullptr : &rule;
    return in;
  }

  Selection OnProcessor() const {
    StreamedLogitsInputs in = WithRule([](const auto& array) { return array.data(); });
    in.rounds = precision == Precision::kBfloat16;
    Selection s;
    s.logsumexp.resize(in.batch);
    s.target_logits.resize(labels.size());
    KeptProbabilities kept;
    kept.begin.assign(in.batch + 1, 0);
    StreamedLogitsOutputs outputs = {};
    outputs.logsumexp = s.logsumexp.data();
    outputs.target_logits = s.target_logits.data();
    outputs.kept = &kept;
    StreamedLogits(in, Workers(InstructionSet::kBaseline).execution, outputs);
    s.size = kept.MostOfAnExample();
    for (int64_t i = 0; i < in.batch; ++i) {
      for (int64_t j = 0; j < s.size; ++j) {
        const int64_t at = kept.begin[i] + j;
        const bool is_there = at < kept.begin[i + 1];
        s.ids.push_back(is_there ? kept.ids[at] : -1);
        s.weights.push_back(is_there ? kept.weights[at] : 0);
        s.logits.push_back(is_there ? kept.logits[at] : 0);
        s.keys.push_back(is_there ? kept.keys[at] : 0);
      }
    }
    return s;
  }

  // With `room` for entries at first; or with as much as there should be.
  Selection OnGpu(int64_t room = 0) const {
    test::DeviceCopies of;
    const std::vector<int64_t> seed = {5, 6};
    const gpu::SoftmaxSelectionInputs in = {WithRule(of), of(seed), precision, 1};
    const DeviceArray<float> logsumexp(in.layer.batch), target_logits(labels.size());
    const DeviceArray<gpu::SoftmaxSelectionSizes> sizes(1);
    if (room == 0) room = gpu::RoomForEntries(in);
    Selection s;
    while (true) {
      const DeviceArray<double> scratch(
          gpu::SoftmaxSelectionScratchBytes(in, room) / sizeof(double) + 1);
      gpu::Error error =
          gpu::SoftmaxSelection(nullptr, in, room, s.num_sweeps == 0, scratch.data(),
                                {logsumexp.data(), target_logits.data(), sizes.data()});
      EXPECT(error.ok());
      s.logsumexp = logsumexp.Values();
      s.target_logits = target_logits.Values();
      ++s.num_sweeps;
      if (room == 0) return s;
      const gpu::SoftmaxSelectionSizes got = sizes.Values()[0];
      if (got.room > room) {
        room = got.room;
        continue;
      }
      s.size = got.most_kept;
      const size_t n = in.layer.batch * s.size;
      const DeviceArray<int64_t> kept(n);
      const DeviceArray<float> weights(n), logits(n), keys(n);
      error = gpu::WriteEntries(nullptr, in, room, scratch.data(), logsumexp.data(),
                                {s.size, kept.data(), weights.data(), logits.data(), keys.data()});
      EXPECT(error.ok());
      s.ids = kept.Values();
      s.weights = weights.Values();
      s.logits = logits.Values();
      s.keys = keys.Values();
      return s;
    }
  }

  KeepRule rule;
  Precision precision = Precision::kFloat32;
};

bool Close(const std::vector<float>& a, const std::vector<float>& b, float error) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool is_same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (!is_same && !(std::abs(a[i] - b[i]) <= error * (1 + std::abs(b[i])))) return false;
  }
  return true;
}

void ExpectSame(const Selection& gpu, const Selection& processor) {
  EXPECT(gpu.target_logits == processor.target_logits);
  EXPECT(Close(gpu.logsumexp, processor.logsumexp, 1e-6f));
  EXPECT(gpu.size == processor.size);
  EXPECT(gpu.ids == processor.ids);
  EXPECT(gpu.logits == processor.logits);
  EXPECT(Close(gpu.keys, processor.keys, 1e-6f));
  EXPECT(Close(gpu.weights, processor.weights, 1e-5f));
}

void AgreesWithTheProcessor(Problem problem) {
  for (Precision precision : {Precision::kFloat32, Precision::kTf32, Precision::kBfloat16}) {
    problem.precision = precision;  // whole numbers are exact in each
    const Selection gpu = problem.OnGpu(), processor = problem.OnProcessor();
    EXPECT(gpu.num_sweeps == 1);
    ExpectSame(gpu, processor);
  }
}

// Too little room: the result still has all entries that are to be kept.
TEST(MoreSweeps) {
  for (const int64_t room : {1, 3, 40, 300}) {
    const Problem problem(7, 2, 9000, 2, 60);
    const Selection gpu = problem.OnGpu(room);
    EXPECT(room > 60 || (gpu.num_sweeps > 1 && gpu.num_sweeps <= 3));
    ExpectSame(gpu, problem.OnProcessor());
  }
  Problem rising(2, 1, 9000, 1, 50);  // of each block more than of all before
  rising.hidden = {1, 1};
  for (int64_t c = 0; c < 9000; ++c) rising.kernel[c] = static_cast<float>(c / 64);
  ExpectSame(rising.OnGpu(60), rising.OnProcessor());
  EXPECT(rising.OnGpu(110).num_sweeps == 1);  // entries of earlier blocks were thinned out
  ExpectSame(rising.OnGpu(), rising.OnProcessor());
}

TEST(Shards) {
  Problem shard(5, 3, 4500, 3, 90);
  shard.inputs.shard = {1, 3, 4500};
  for (int64_t& label : shard.labels) label = label < 0 ? -1 : 3 * label + label % 3;
  AgreesWithTheProcessor(shard);
}

TEST(LabelsWithoutARow) {
  Problem problem(1, 2, 100, 3, 20);
  problem.labels = {-1, -1, -1};
  const Selection expected = problem.OnProcessor();
  problem.labels = {100, 1LL << 40, -7};
  ExpectSame(problem.OnGpu(), expected);
}

TEST(NotNumbers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (float strange : {std::nanf(""), kInfinity, -kInfinity}) {
    Problem problem(3, 2, 4500, 2, 9);
    problem.bias[4400] = strange;
    const Selection gpu = problem.OnGpu(), processor = problem.OnProcessor();
    EXPECT(Close(gpu.logsumexp, processor.logsumexp, 1e-6f));
    EXPECT(gpu.ids == processor.ids);
  }
}

// A logit so far above the others that few of these, or none, are kept.
TEST(LargeLogits) {
  for (float large : {15.f, 17.f, 100.f, 3e4f}) {
    Problem problem(20, 1, 40000, 0, 50);
    std::fill(problem.hidden.begin(), problem.hidden.end(), 0.f);
    std::fill(problem.bias.begin(), problem.bias.end(), 0.f);
    problem.bias[4400] = large;
    const Selection gpu = problem.OnGpu();
    EXPECT((gpu.size > 1) == (large < 20));
    ExpectSame(gpu, problem.OnProcessor());
  }
}

// Numbers that are not whole: keys that are that close to the threshold are unlikely.
TEST(Fractions) {
  Problem problem(20, 7, 5000, 2, 30);
  for (auto* array : {&problem.hidden, &problem.kernel, &problem.bias}) {
    for (size_t i = 0; i < array->size(); ++i) {
      (*array)[i] = std::sin(static_cast<float>(7 * i + 1)) * 0.7f;
    }
  }
  const Selection gpu = problem.OnGpu(), processor = problem.OnProcessor();
  EXPECT(gpu.ids == processor.ids);
  EXPECT(Close(gpu.weights, processor.weights, 1e-5f));
  EXPECT(Close(gpu.target_logits, processor.target_logits, 1e-6f));
  EXPECT(Close(gpu.logsumexp, processor.logsumexp, 1e-6f));
}

// Device memory is bounded, be there ever so many classes; W is copied where it is not in the type
// that is multiplied.
TEST(MemoryIsBounded) {
  for (bool is_bfloat16 : {false, true}) {
    for (const auto& [batch, width] :
         {std::pair<int64_t, int64_t>{1, 256}, {1, 4000}, {3000, 64}}) {
      gpu::SoftmaxSelectionInputs in = {};
      in.precision = is_bfloat16 ? Precision::kFloat32 : Precision::kBfloat16;
      in.layer.batch = batch;
      in.layer.weights = {nullptr, nullptr, is_bfloat16, 1 << 24, width};
      const int64_t block = int64_t{32} << 20, least = int64_t{16} << 10;
      const int64_t logits = std::max(block, least * batch), copy = std::max(block, least * width);
      const int64_t bytes = gpu::SoftmaxSelectionScratchBytes(in, 0);
      EXPECT(bytes <= logits + copy + 2 * batch * width + (1 << 17));
    }
  }
}

TEST(All) {
  for (const Problem& problem :
       {Problem(1, 1, 1, 1, 1), Problem(3, 5, 9000, 2, 70), Problem(40, 3, 1000, 3, 33),
        Problem(3, 4, 700, 0, 700), Problem(5, 4, 300, 2, 0), Problem(0, 4, 30, 2, 3),
        Problem(2, 0, 5000, 1, 5)}) {
    AgreesWithTheProcessor(problem);
  }
  Problem without_bias(4, 3, 4200, 1, 20);
  without_bias.has_bias = false;
  AgreesWithTheProcessor(without_bias);
}

}  // namespace
}  // namespace tfx::core
