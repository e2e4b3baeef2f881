// SPDX-License-Identifier: Apache-2.0
//
// Compares logits of labels and candidates on a GPU and on the processor.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/candidate_logits.h"
#include "core/gpu/candidate_logits.h"
#include "tests/bfloat16.h"
#include "tests/candidate_problem.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/workers.h"

namespace tfx::core {
namespace {

using test::CandidateProblem;
using test::CandidateSizes;
using test::DeviceArray;

struct Results {
  explicit Results(const CandidateProblem& problem)
      : true_logits(problem.size.batch * problem.size.labels, 99),
        logits(problem.size.batch * problem.size.candidates, 99),
        hits(logits.size(), 2) {}

  std::vector<float> true_logits, logits;
  std::vector<unsigned char> hits;
};

bool* Bools(unsigned char* hits) { return reinterpret_cast<bool*>(hits); }

Results OnProcessor(const CandidateProblem& problem) {
  Results r(problem);
  const std::vector<uint16_t> halves[2] = {test::Halves(problem.kernel),
                                           test::Halves(problem.bias)};
  CandidateLogits(problem.is_bfloat16 ? problem.WeightsIn(halves) : problem.Weights(),
                  problem.Batch(), Workers(InstructionSet::kBaseline).execution,
                  {r.true_logits.data(), r.logits.data(), Bools(r.hits.data())});
  return r;
}

Results OnGpu(const CandidateProblem& problem) {
  Results r(problem);
  test::DeviceCopies of;
  const CandidateBatch batch = problem.Batch(of);
  const std::vector<uint16_t> halves[2] = {test::Halves(problem.kernel),
                                           test::Halves(problem.bias)};
  LayerWeights weights = problem.Weights();
  weights.is_bfloat16 = problem.is_bfloat16;
  weights.kernel = problem.is_bfloat16 ? static_cast<void*>(of(halves[0])) : of(problem.kernel);
  if (problem.has_bias) {
    weights.bias = problem.is_bfloat16 ? static_cast<void*>(of(halves[1])) : of(problem.bias);
  }
  const int64_t bytes = gpu::CandidateLogitsScratchBytes(weights, batch);
  const DeviceArray<double> scratch(bytes / sizeof(double));
  const gpu::Error error =
      gpu::CandidateLogits(nullptr, weights, batch, scratch.data(),
                           {of(r.true_logits), of(r.logits), Bools(of(r.hits))});
  EXPECT(error.ok());
  of.Back(&r.true_logits);
  of.Back(&r.logits);
  of.Back(&r.hits);
  return r;
}

void AgreesWithTheProcessor(const CandidateProblem& problem) {
  const Results gpu = OnGpu(problem), processor = OnProcessor(problem);
  EXPECT(gpu.true_logits == processor.true_logits);
  EXPECT(gpu.logits == processor.logits);
  EXPECT(gpu.hits == processor.hits);
}

// Errors of a logit, and of a plain sum in float32, relative to float64.
void IsAsExactAsFloat32(const CandidateProblem& problem) {
  const Results gpu = OnGpu(problem);
  const CandidateSizes& size = problem.size;
  double worst = 0, worst_plain = 0;
  for (int64_t at = 0; at < size.batch * size.candidates; ++at) {
    const int64_t i = at / size.candidates, c = problem.CandidateAt(at);
    const double exact = problem.Logit<double>(i, c);
    worst = std::max(worst, std::abs(gpu.logits[at] - exact));
    worst_plain = std::max(worst_plain, std::abs(problem.Logit<float>(i, c) - exact));
  }
  EXPECT(worst > 0 && worst <= worst_plain);
}

void IdsWithoutARow(bool own) {
  CandidateProblem problem({10, 3, 2, 3, 4}, own, 0, 1, 5);
  problem.labels = {10, 1LL << 40, -7, 3, -1, 3};
  for (size_t i = 0; i < problem.candidates.size(); i += 4) {
    const int64_t ids[] = {10, 3, -(1LL << 50), 1LL << 32};
    std::copy_n(ids, 4, problem.candidates.begin() + i);
  }
  const Results strange = OnGpu(problem);
  for (int64_t& id : problem.labels) id = id >= 10 ? -1 : id;
  for (int64_t& id : problem.candidates) id = id >= 10 ? -1 : id;
  const Results padded = OnGpu(problem);
  EXPECT(strange.true_logits == padded.true_logits);
  EXPECT(strange.logits == padded.logits);
  EXPECT(strange.hits == padded.hits);
  EXPECT(padded.hits[5] == 1 && padded.hits[4] == 0);
}

TEST(All) {
  using test::CandidateProblem;
  int seed = 0;
  for (const test::CandidateSizes& size : {
           test::CandidateSizes{50, 20, 40, 2, 70},
           {1, 1, 3, 2, 1},
           {300, 252, 5, 1, 33},
           {9, 7, 1, 30, 2},
           {20, 5, 7, 0, 9},
           {20, 5, 7, 3, 0},
           {30, 1, 0, 2, 9},
       }) {
    for (bool own : {false, true}) {
      for (double padding : {0.0, 0.4, 1.0}) {
        CandidateProblem problem(size, own, padding, 1, ++seed);
        problem.has_bias = seed % 3 != 0;
        AgreesWithTheProcessor(problem);
        problem.is_bfloat16 = true;
        AgreesWithTheProcessor(problem);
      }
    }
  }
  for (bool own : {false, true}) {
    IdsWithoutARow(own);
  }
  // With shared candidates the product is cuBLAS's; here a plain sum replaces it.
  IsAsExactAsFloat32(CandidateProblem({40, 500, 20, 1, 30}, true, 0, 0, 1));
}

}  // namespace
}  // namespace tfx::core
