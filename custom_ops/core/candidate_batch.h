// SPDX-License-Identifier: Apache-2.0
//
// A batch with labels and candidate classes, and the weights of a layer.

#ifndef TFX_LARGEOUT_CORE_CANDIDATE_BATCH_H_
#define TFX_LARGEOUT_CORE_CANDIDATE_BATCH_H_

#include <cstdint>

namespace tfx::core {

// W [C, D] and b [C] of one type, float or bfloat16.
struct LayerWeights {
  const void* kernel;
  const void* bias;  // null: none
  bool is_bfloat16;
  int64_t num_classes;  // C, below 2^31
  int64_t width;        // D

  int64_t BytesOfRow() const { return width * (is_bfloat16 ? 2 : 4); }
  const void* Row(int64_t row) const {
    return static_cast<const char*>(kernel) + row * BytesOfRow();
  }
};

// Ids are in [-1, C); -1: none. N (K + S) is below 2^31.
struct CandidateBatch {
  const float* hidden;        // [N, D], finite
  const int64_t* labels;      // [N, K]
  const int64_t* candidates;  // [S], or [N, S] if they are per example
  bool own;
  int64_t size;            // N
  int64_t num_labels;      // K
  int64_t num_candidates;  // S
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_CANDIDATE_BATCH_H_
