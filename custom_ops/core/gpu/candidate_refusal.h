// SPDX-License-Identifier: Apache-2.0
//
// What ops on labels and candidates refuse, found on a GPU so that no host waits for it.

#ifndef TFX_LARGEOUT_CORE_GPU_CANDIDATE_REFUSAL_H_
#define TFX_LARGEOUT_CORE_GPU_CANDIDATE_REFUSAL_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/candidate_update.h"
#include "core/gpu/error.h"

struct CUstream_st;

namespace tfx::core::gpu {

// In the order in which they are looked for.
enum class CandidateRefusal {
  kLabels,  // at a place: no class and not -1, as the candidates
  kCandidates,
  kHidden,  // at a place: not finite, as the gradients but at padding
  kTrueGradient,
  kCandidateGradient,
  kLearningRate  // not finite, below 0, or not below 1 / weight_decay
};

// What is wrong with one call: CandidateRefusal times 2^56 plus the place in its array.
using CandidateFault = unsigned long long;
constexpr CandidateFault kNoCandidateFault = ~0ull;

// The first fault that no one has been told of yet. It is there once is_set is not 0.
struct CandidateReport {
  CandidateFault fault;
  int64_t num_classes;
  int64_t columns;  // of the array that the place is in, by rows; 0 if it is a vector
  int64_t id;       // what was found there, of ids
  double number;    // of numbers
  double weight_decay;
  unsigned long long is_set;

  constexpr CandidateRefusal Refusal() const { return static_cast<CandidateRefusal>(fault >> 56); }
  constexpr int64_t Place() const { return static_cast<int64_t>(fault & ((1ull << 56) - 1)); }
};

// What is looked at, all on the device: the batch; where they are not null, gradients and a rate.
struct CandidateNumbers {
  int64_t num_classes, width;
  CandidateBatch batch;
  CandidateGradients gradients;  // both or none
  const float* learning_rate;
  double weight_decay;
};

// Begins to find the first fault, into *fault, and to report it unless another one is there.
// Returns what is wrong with the launches.
Error FindCandidateFault(CUstream_st* stream, const CandidateNumbers& numbers,
                         CandidateFault* fault, CandidateReport* report);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CANDIDATE_REFUSAL_H_
