// SPDX-License-Identifier: Apache-2.0
//
// Steps of SGD, Adagrad and Adam on some rows of a weight matrix.

#ifndef TFX_LARGEOUT_CORE_ROW_UPDATE_H_
#define TFX_LARGEOUT_CORE_ROW_UPDATE_H_

#include <cstdint>

#include "core/adam_correction.h"
#include "core/class_shard.h"
#include "core/execution.h"
#include "core/row_kernels_isa.h"

namespace tfx::core {

// A matrix of weights [C, D], float or bfloat16, and its slots.
struct WeightRows {
  void* weights;  // null: there are none
  bool is_bfloat16;
  int64_t width;                // D
  void* slots[2];               // [C, D], as in RowPlace
  uint32_t* ages;               // [C]: updates of each row, at most 2^31 - 1; only for Adam
  float* of_rows = nullptr;     // [C], as in RowPlace
  uint16_t* errors = nullptr;   // [C, D], as in RowPlace
  bool bfloat16_slots = false;  // of `slots`
  uint64_t key = 0;             // of the random bits of this step and these weights
  ClassShard shard = {0, 1, 0};
};

// Prefetches a row and its slots.
void PrefetchRow(const WeightRows& rows, int64_t row);

// One step, on any rows.
class RowUpdater {
 public:
  // REQUIRES: `correction` is not null if step.method is kAdam.
  RowUpdater(const RowStep& step, const AdamCorrection* correction, const RowKernels& kernels)
      : step_(step), correction_(correction), kernels_(kernels) {}

  // Changes a row by its gradient [D].
  // REQUIRES: 0 <= row < C; the gradient is finite; no other thread uses this row.
  void Update(const WeightRows& rows, int64_t row, const float* gradient) const;

 private:
  RowStep step_;
  const AdamCorrection* correction_;
  const RowKernels& kernels_;
};

// Changes rows ids[i] by gradient[i], for n ids.
//
// Cost: O(n D).
//
// REQUIRES: ids are in [0, C), without repeats; the gradient [n, D] is finite.
void UpdateRows(const RowUpdater& updater, const WeightRows& rows, const int64_t* ids, int64_t n,
                const float* gradient, const Execution& execution);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_ROW_UPDATE_H_
