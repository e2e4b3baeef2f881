// SPDX-License-Identifier: Apache-2.0
//
// Errors in labels and candidates are found on the device, and then a step changes nothing.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/gpu/candidate_refusal.h"
#include "core/gpu/candidate_update.h"
#include "tests/candidate_problem.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"

namespace tfx::core::gpu {
namespace {

using test::CandidateProblem;
using test::DeviceArray;

// A step of SGD on a problem; `report` continues the report of the step before.
struct Step {
  Step(const CandidateProblem& problem, float rate, double weight_decay,
       const CandidateReport& before = {})
      : kernel(problem.kernel),
        bias(problem.bias),
        hidden_gradient(problem.hidden.size()),
        rates(std::vector<float>{rate}),
        faults(1),
        reports(std::vector<CandidateReport>{before}) {
    test::DeviceCopies of;
    const CandidateBatch batch = problem.Batch(of);
    const CandidateGradients gradients = {of(problem.true_gradient), of(problem.gradient)};
    const int64_t width = problem.size.width;
    EXPECT(FindCandidateFault(
               nullptr, {problem.size.classes, width, batch, gradients, rates.data(), weight_decay},
               faults.data(), reports.data())
               .ok());
    fault = faults.Values()[0];
    report = reports.Values()[0];
    LayerWeights weights = problem.Weights();
    weights.kernel = kernel.data();
    weights.bias = bias.data();
    const LayerRows rows = {{kernel.data(), false, width, {nullptr, nullptr}, nullptr},
                            {bias.data(), false, 1, {nullptr, nullptr}, nullptr}};
    RowRule rule = {};
    rule.step.clip_norm = std::numeric_limits<float>::infinity();
    rule.learning_rate = rates.data();
    const int64_t bytes = CandidateUpdateScratchBytes(weights, batch);
    const DeviceArray<double> scratch(bytes / sizeof(double));
    EXPECT(CandidateUpdate(nullptr, weights, rows, batch, gradients, &rule, faults.data(),
                           scratch.data(), hidden_gradient.data())
               .ok());
  }

  const DeviceArray<float> kernel, bias, hidden_gradient, rates;
  const DeviceArray<CandidateFault> faults;
  const DeviceArray<CandidateReport> reports;
  CandidateFault fault;
  CandidateReport report;
};

CandidateProblem Good(bool own) { return CandidateProblem({30, 5, 6, 2, 9}, own, 0.3, 1, 4); }

void AGoodStepIsTaken(bool own) {
  const CandidateProblem problem = Good(own);  // with NaN in gradients at padding
  const Step step(problem, 0.5f, 0.1);
  EXPECT(step.fault == kNoCandidateFault && step.report.is_set == 0);
  EXPECT(step.kernel.Values() != problem.kernel);
}

// Expects a fault at a position after `spoil` has changed a problem, a rate and a decay.
template <typename Spoil>
void IsRefused(CandidateRefusal what, int64_t place, bool own, const Spoil& spoil) {
  CandidateProblem problem = Good(own);
  float rate = 0.5f;
  double weight_decay = 0.1;
  spoil(problem, rate, weight_decay);
  const Step step(problem, rate, weight_decay);
  EXPECT(step.report.is_set == 1 && step.report.fault == step.fault);
  EXPECT(step.report.Refusal() == what && step.report.Place() == place);
  EXPECT(step.report.num_classes == 30);
  EXPECT(step.kernel.Values() == problem.kernel && step.bias.Values() == problem.bias);
  for (float g : step.hidden_gradient.Values()) EXPECT(g == 0);
}

void WhatIsWrongIsRefused(bool own) {
  using P = CandidateProblem;
  using R = CandidateRefusal;
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  IsRefused(R::kLabels, 3, own, [](P& p, float&, double&) { p.labels[3] = p.labels[7] = 30; });
  IsRefused(R::kLabels, 11, own, [](P& p, float&, double&) { p.labels[11] = -2; });
  IsRefused(R::kCandidates, 8, own, [](P& p, float&, double&) { p.candidates[8] = 1LL << 40; });
  IsRefused(R::kHidden, 29, own, [=](P& p, float&, double&) { p.hidden[29] = nan; });
  IsRefused(R::kTrueGradient, 1, own, [=](P& p, float&, double&) {
    p.labels[1] = 4;
    p.true_gradient[1] = -infinity;
  });
  IsRefused(R::kCandidateGradient, 53, own, [=](P& p, float&, double&) {
    p.candidates.back() = 4;
    for (int64_t i = own ? 5 : 0; i < 6; ++i) p.gradient[i * 9 + 8] = 1;
    p.gradient[53] = nan;
  });
  IsRefused(R::kLearningRate, 0, own, [](P&, float& rate, double&) { rate = -1; });
  IsRefused(R::kLearningRate, 0, own, [=](P&, float& rate, double&) { rate = nan; });
  IsRefused(R::kLearningRate, 0, own, [](P&, float&, double& decay) { decay = 2; });
}

// Of two faults the first one is told, and it stays till somebody has read it.
TEST(TheFirstReportStays) {
  CandidateProblem problem = Good(false);
  problem.candidates[2] = 30;
  problem.labels[5] = -7;
  const Step first(problem, 0.5f, 0.1);
  EXPECT(first.report.Refusal() == CandidateRefusal::kLabels);
  EXPECT(first.report.id == -7 && first.report.columns == 2);
  problem.labels[5] = 0;
  const Step second(problem, 0.5f, 0.1, first.report);
  EXPECT(second.report.fault == first.fault && second.fault != first.fault);
  EXPECT(second.kernel.Values() == problem.kernel);
}

TEST(All) {
  for (bool own : {false, true}) {
    AGoodStepIsTaken(own);
    WhatIsWrongIsRefused(own);
  }
}

}  // namespace
}  // namespace tfx::core::gpu
