// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/execution.h"
#include "tests/bfloat16.h"
#include "tests/expect.h"
#include "tests/workers.h"

namespace tfx::core {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Whole numbers, so that every instruction set must agree to the last bit.
std::vector<float> Whole(int64_t size, int seed) {
  std::mt19937 random(seed);
  std::vector<float> x(size);
  for (float& entry : x) entry = static_cast<float>(static_cast<int>(random() % 7) - 3);
  return x;
}

RowStep StepOf(RowMethod method) {
  return {method, 0.5f, 0.75f, kInfinity, 0.5f, 0.25f, 0.5f, 0.75f, 1.0f, false};
}

// The step on one weight and its slots, in float64.
struct Expected {
  double w, slot_0, slot_1;

  Expected(const RowStep& s, double rate, double weight, double g, double x0, double x1)
      : w(weight * s.kept), slot_0(x0), slot_1(x1) {
    switch (s.method) {
      case RowMethod::kSgd:
        w -= rate * g;
        break;
      case RowMethod::kMomentum:
      case RowMethod::kNesterov:
        slot_0 = s.momentum * slot_0 - rate * g;
        w += s.method == RowMethod::kMomentum ? slot_0 : s.momentum * slot_0 - rate * g;
        break;
      case RowMethod::kAdagrad:
        slot_0 += g * g;
        w -= rate * g / std::sqrt(slot_0 + s.epsilon);
        break;
      case RowMethod::kAdam:
        slot_0 = s.momentum * slot_0 + s.rest_1 * g;
        slot_1 = s.beta_2 * slot_1 + s.rest_2 * g * g;
        w -= rate * slot_0 / (std::sqrt(slot_1) + s.epsilon);
        break;
    }
  }
};

void StepsAreThoseOfTheFormula(const RowKernels& kernels) {
  for (RowMethod method : {RowMethod::kSgd, RowMethod::kMomentum, RowMethod::kNesterov,
                           RowMethod::kAdagrad, RowMethod::kAdam}) {
    for (int64_t n : {1, 15, 16, 37, 64}) {
      for (bool clipped : {false, true}) {
        RowStep step = StepOf(method);
        const auto g = Whole(n, 1), before = Whole(n, 2);
        double norm = 0;
        for (float x : g) norm += static_cast<double>(x) * x;
        norm = std::sqrt(norm);
        double scale = 1;
        if (clipped && norm > 1) {
          step.clip_norm = 1;
          scale = 1 / norm;
        }
        auto w = before;
        std::vector<float> slot_0(n, 2.0f), slot_1(n, 3.0f);
        kernels.step(step, 0.25f, {w.data(), {slot_0.data(), slot_1.data()}}, false, g.data(), n);
        for (int64_t i = 0; i < n; ++i) {
          const Expected expected(step, 0.25, before[i], scale * g[i], 2, 3);
          EXPECT(std::abs(w[i] - expected.w) < 1e-6);
          EXPECT(std::abs(slot_0[i] - expected.slot_0) < 1e-5);
          EXPECT(std::abs(slot_1[i] - expected.slot_1) < 1e-5);
        }
      }
    }
  }
}

void BfloatsAreRoundedToTheNearest(const RowKernels& kernels) {
  RowStep step = StepOf(RowMethod::kSgd);
  step.kept = 1;
  const float unit = 1.0f / 128;  // between numbers of bfloat16 from 1 on
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> g = {0,         -unit / 2, -unit / 2, -0.51f * unit, -0.49f * unit,
                                -3 * unit, nan};
  const std::vector<float> before = {1, 1, 1 + unit, 1, 1, -kInfinity, 1};
  const std::vector<float> after = {1, 1, 1 + 2 * unit, 1 + unit, 1, -kInfinity, nan};
  for (int repeats : {1, 5}) {
    std::vector<float> gradient, old_weights, new_weights;
    for (int i = 0; i < repeats; ++i) {
      gradient.insert(gradient.end(), g.begin(), g.end());
      old_weights.insert(old_weights.end(), before.begin(), before.end());
      new_weights.insert(new_weights.end(), after.begin(), after.end());
    }
    std::vector<uint16_t> w = test::Halves(old_weights);
    kernels.step(step, 1.0f, {w.data(), {nullptr, nullptr}}, true, gradient.data(), w.size());
    EXPECT(w == test::Halves(new_weights));
  }
}

void LogitsAreExact(const RowKernels& kernels) {
  for (int64_t width : {1, 5, 16, 64, 131}) {
    const int64_t num_classes = 20;
    const auto w = Whole(num_classes * width, 1), b = Whole(num_classes, 2), h = Whole(width, 3);
    const auto narrow_w = test::Halves(w), narrow_b = test::Halves(b);
    for (int64_t n : {0, 1, 4, 43}) {
      std::vector<int64_t> ids(n);
      for (int64_t j = 0; j < n; ++j) ids[j] = j % 5 == 2 ? -1 : j * 7 % num_classes;
      for (bool bias : {false, true}) {
        std::vector<float> out(n, 99), narrow_out(n, 99);
        kernels.logits(w.data(), bias ? b.data() : nullptr, false, width, ids.data(), n, h.data(),
                       out.data());
        kernels.logits(narrow_w.data(), bias ? narrow_b.data() : nullptr, true, width, ids.data(),
                       n, h.data(), narrow_out.data());
        for (int64_t j = 0; j < n; ++j) {
          float expected = bias && ids[j] >= 0 ? b[ids[j]] : 0;
          for (int64_t d = 0; d < width && ids[j] >= 0; ++d) {
            expected += w[ids[j] * width + d] * h[d];
          }
          EXPECT(out[j] == expected);
          EXPECT(narrow_out[j] == expected);
        }
      }
    }
  }
}

constexpr int64_t kClasses = 9, kExamples = 5;
const std::vector<ClassTerm> kTerms = {{7, 3, 2}, {7, 3, -1}, {0, 3, 1}, {8, 0, 3}, {7, 3, 1}};

void PairLogitsAreThoseOfLogits(const RowKernels& kernels) {
  for (int64_t width : {0, 1, 5, 16, 64, 131}) {
    auto w = Whole(kClasses * width, 1), b = Whole(kClasses, 2), h = Whole(kExamples * width, 3);
    for (float& x : h) x *= 0.1f;  // now the order of sums matters
    const auto narrow_w = test::Halves(w), narrow_b = test::Halves(b);
    for (int64_t n : {0, 1, 4, 43}) {
      std::vector<ClassExample> pairs(n);
      for (int64_t j = 0; j < n; ++j) {
        pairs[j] = {static_cast<uint32_t>(j * 7 % kClasses),
                    static_cast<uint32_t>(j * 3 % kExamples)};
      }
      for (bool narrow : {false, true}) {
        const void* rows = narrow ? static_cast<const void*>(narrow_w.data()) : w.data();
        const void* biases = narrow ? static_cast<const void*>(narrow_b.data()) : b.data();
        for (const void* bias : {biases, static_cast<const void*>(nullptr)}) {
          std::vector<float> out(n, 99);
          kernels.pair_logits(rows, bias, narrow, width, pairs.data(), n, h.data(), out.data());
          for (int64_t j = 0; j < n; ++j) {
            const int64_t id = pairs[j].class_id;
            float expected;
            kernels.logits(rows, bias, narrow, width, &id, 1, h.data() + pairs[j].example * width,
                           &expected);
            EXPECT(out[j] == expected);
          }
        }
      }
    }
  }
}

void SumsOfExamplesAreExact(const RowKernels& kernels) {
  for (int64_t width : {0, 1, 5, 16, 48, 131, 400}) {
    const auto h = Whole(kExamples * width, 1);
    std::vector<float> result(width, 99), expected(width);
    for (const ClassTerm& term : kTerms) {
      for (int64_t d = 0; d < width; ++d) {
        expected[d] += term.gradient * h[term.example * width + d];
      }
    }
    kernels.sum_examples(kTerms.data(), kTerms.size(), h.data(), width, result.data());
    EXPECT(result == expected);
  }
}

void AddedRowsAreExact(const RowKernels& kernels) {
  for (int64_t width : {0, 1, 5, 16, 48, 131, 400}) {
    const auto w = Whole(kClasses * width, 1), before = Whole(kExamples * width, 2);
    const auto narrow_w = test::Halves(w);
    auto result = before, narrow_result = before, expected = before;
    for (const ClassTerm& term : kTerms) {
      for (int64_t d = 0; d < width; ++d) {
        expected[term.example * width + d] += term.gradient * w[term.class_id * width + d];
      }
    }
    kernels.add_rows(kTerms.data(), kTerms.size(), w.data(), false, width, result.data());
    kernels.add_rows(kTerms.data(), kTerms.size(), narrow_w.data(), true, width,
                     narrow_result.data());
    EXPECT(result == expected);
    EXPECT(narrow_result == expected);
  }
}

void ArraysAreExact(const RowKernels& kernels) {
  for (int64_t n : {0, 1, 16, 37}) {
    const auto x = Whole(n, 1);
    std::vector<float> wide(n, 99);
    kernels.widen(test::Halves(x).data(), n, wide.data());
    EXPECT(wide == x);
  }
}

void IdsOutsideAreFound(const RowKernels& kernels) {
  for (int64_t n : {1, 63, 64, 200}) {
    std::vector<int64_t> ids(n, 5);
    ids[0] = -1;
    EXPECT(kernels.find_outside(ids.data(), n, -1, 6) == n);
    for (int64_t bad : {int64_t{-2}, int64_t{6}, std::numeric_limits<int64_t>::min(),
                        std::numeric_limits<int64_t>::max()}) {
      for (int64_t at = 0; at < n; at += 31) {
        auto wrong = ids;
        wrong[at] = wrong[n - 1] = bad;
        EXPECT(kernels.find_outside(wrong.data(), n, -1, 6) == at);
      }
    }
  }
  EXPECT(kernels.find_outside(nullptr, 0, 0, 1) == 0);
}

void Run(InstructionSet set) {
  const RowKernels& kernels = RowKernelsOf(set);
  StepsAreThoseOfTheFormula(kernels);
  BfloatsAreRoundedToTheNearest(kernels);
  LogitsAreExact(kernels);
  PairLogitsAreThoseOfLogits(kernels);
  SumsOfExamplesAreExact(kernels);
  AddedRowsAreExact(kernels);
  ArraysAreExact(kernels);
  IdsOutsideAreFound(kernels);
}

TEST(All) {
  for (InstructionSet set : InstructionSets()) Run(set);
}

}  // namespace tfx::core
