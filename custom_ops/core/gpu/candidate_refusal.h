// SPDX-License-Identifier: Apache-2.0
//
// Checks of the values for ops on labels and candidates, on a GPU, so that the host does not wait.

#ifndef TFX_LARGEOUT_CORE_GPU_CANDIDATE_REFUSAL_H_
#define TFX_LARGEOUT_CORE_GPU_CANDIDATE_REFUSAL_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/candidate_update.h"
#include "core/gpu/error.h"

struct CUstream_st;

namespace tfx::core::gpu {

// In the order of the checks.
enum class CandidateRefusal {
  kLabels,  // at a position: neither a class nor -1, also candidates
  kCandidates,
  kHidden,  // at a position: not finite, also gradients except at padding
  kTrueGradient,
  kCandidateGradient,
  kLearningRate  // not finite, below 0, or not below 1 / weight_decay
};

// The fault of one call: CandidateRefusal times 2^56 plus the position in its array.
using CandidateFault = unsigned long long;
constexpr CandidateFault kNoCandidateFault = ~0ull;

// The first fault that was not reported yet. It is valid once is_set is not 0.
struct CandidateReport {
  CandidateFault fault;
  int64_t num_classes;
  int64_t columns;  // of the array by rows; 0 for a vector
  int64_t id;       // the value found, for ids
  double number;    // the value found, for numbers
  double weight_decay;
  unsigned long long is_set;

  constexpr CandidateRefusal Refusal() const { return static_cast<CandidateRefusal>(fault >> 56); }
  constexpr int64_t Place() const { return static_cast<int64_t>(fault & ((1ull << 56) - 1)); }
};

// The checked values, all on the device: the batch; if not null, gradients and a rate.
struct CandidateNumbers {
  int64_t num_classes, width;
  CandidateBatch batch;
  CandidateGradients gradients;  // both or none
  const float* learning_rate;
  double weight_decay;
};

// Starts to find the first fault, into *fault, and to report it unless another one is already
// reported. Returns an error of the launches.
Error FindCandidateFault(CUstream_st* stream, const CandidateNumbers& numbers,
                         CandidateFault* fault, CandidateReport* report);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CANDIDATE_REFUSAL_H_
