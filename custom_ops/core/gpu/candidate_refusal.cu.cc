// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/candidate_refusal.h"

#include <algorithm>

#include "core/gpu/candidate_rows.h"
#include "core/gpu/launch_each.h"

namespace tfx::core::gpu {
namespace {

__global__ void ClearFault(CandidateFault* fault) { *fault = kNoCandidateFault; }

// The first fault is kept, in any order of threads.
__device__ void Refuse(CandidateRefusal what, int64_t place, CandidateFault* fault) {
  atomicMin(fault, static_cast<CandidateFault>(what) << 56 | static_cast<CandidateFault>(place));
}

__device__ void LookAtId(CandidateRefusal what, const int64_t* ids, int64_t i, int64_t num_classes,
                         CandidateFault* fault) {
  if (ids[i] != -1 && !IsRow(num_classes, ids[i])) Refuse(what, i, fault);
}

// A thread for each place of the largest array.
__global__ void __launch_bounds__(kThreads)
    LookAtNumbers(CandidateNumbers numbers, CandidateFault* fault) {
  const CandidateBatch& batch = numbers.batch;
  const CandidateGradients& gradients = numbers.gradients;
  const int64_t i = OwnIndex(), num_classes = numbers.num_classes;
  const int64_t num_labels = batch.size * batch.num_labels;
  const int64_t num_logits = batch.size * batch.num_candidates;
  if (i < num_labels) {
    LookAtId(CandidateRefusal::kLabels, batch.labels, i, num_classes, fault);
    const bool is_row = IsRow(num_classes, batch.labels[i]);
    if (gradients.labels != nullptr && is_row && !isfinite(gradients.labels[i])) {
      Refuse(CandidateRefusal::kTrueGradient, i, fault);
    }
  }
  if (i < (batch.own ? num_logits : batch.num_candidates)) {
    LookAtId(CandidateRefusal::kCandidates, batch.candidates, i, num_classes, fault);
  }
  if (i < batch.size * numbers.width && !isfinite(batch.hidden[i])) {
    Refuse(CandidateRefusal::kHidden, i, fault);
  }
  if (gradients.candidates != nullptr && i < num_logits && !isfinite(gradients.candidates[i])) {
    const int64_t id = batch.candidates[batch.own ? i : i % batch.num_candidates];
    if (IsRow(num_classes, id)) Refuse(CandidateRefusal::kCandidateGradient, i, fault);
  }
  if (i > 0 || numbers.learning_rate == nullptr) return;
  const double rate = *numbers.learning_rate;
  if (!isfinite(rate) || !(rate >= 0) || !(rate * numbers.weight_decay < 1)) {
    Refuse(CandidateRefusal::kLearningRate, 0, fault);
  }
}

// One thread.
__global__ void Report(CandidateNumbers numbers, const CandidateFault* fault,
                       CandidateReport* report) {
  if (*fault == kNoCandidateFault || report->is_set != 0) return;
  const CandidateBatch& batch = numbers.batch;
  report->fault = *fault;
  report->num_classes = numbers.num_classes;
  report->weight_decay = numbers.weight_decay;
  const int64_t place = report->Place();
  switch (report->Refusal()) {
    case CandidateRefusal::kLabels:
      report->columns = batch.num_labels;
      report->id = batch.labels[place];
      break;
    case CandidateRefusal::kCandidates:
      report->columns = batch.own ? batch.num_candidates : 0;
      report->id = batch.candidates[place];
      break;
    case CandidateRefusal::kHidden:
      report->columns = numbers.width;
      report->number = batch.hidden[place];
      break;
    case CandidateRefusal::kTrueGradient:
      report->columns = batch.num_labels;
      report->number = numbers.gradients.labels[place];
      break;
    case CandidateRefusal::kCandidateGradient:
      report->columns = batch.num_candidates;
      report->number = numbers.gradients.candidates[place];
      break;
    case CandidateRefusal::kLearningRate:
      report->number = *numbers.learning_rate;
      break;
  }
  report->is_set = 1;
}

}  // namespace

Error FindCandidateFault(CUstream_st* stream, const CandidateNumbers& numbers,
                         CandidateFault* fault, CandidateReport* report) {
  const CandidateBatch& batch = numbers.batch;
  const int64_t of_example =
      std::max({batch.num_labels, batch.num_candidates, numbers.width, int64_t{1}});
  const int64_t n = std::max(batch.size * of_example, std::max<int64_t>(batch.num_candidates, 1));
  ForgetErrors();
  TFX_LAUNCH(ClearFault, dim3(1), dim3(1), 0, stream, fault);
  TFX_LAUNCH_THREADS(LookAtNumbers, n, stream, numbers, fault);
  TFX_LAUNCH(Report, dim3(1), dim3(1), 0, stream, numbers, fault, report);
  return LastError();
}

}  // namespace tfx::core::gpu
