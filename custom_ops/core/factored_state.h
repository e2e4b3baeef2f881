// SPDX-License-Identifier: Apache-2.0
//
// The state of a factored layer: W = V U + 1 w^T, and derived matrices.

#ifndef TFX_LARGEOUT_CORE_FACTORED_STATE_H_
#define TFX_LARGEOUT_CORE_FACTORED_STATE_H_

#include <cstdint>

namespace tfx::core {

// Rows are classes. For a row r of V in slot e, W[r] = V[r] transitions[e] U + w; the transition of
// the current slot is I.
template <typename T>
struct FactoredState {
  T* v;                    // V [C, D]
  T* u;                    // U [D, D]
  T* u_inverse_transpose;  // P = U^-T [D, D]
  T* gram;                 // Q = W^T W [D, D], symmetric to the last bit
  T* shift;                // w [D]
  T* row_sum;              // c = W^T 1 [D]
  T* transitions;          // [num_slots, D, D]
  uint8_t* row_slot;       // [C]
  int64_t* slot_rows;      // [num_slots]: number of rows in each slot
  int64_t* current_slot;   // [1]
  int64_t num_classes;     // C
  int64_t width;           // D
  int64_t num_slots;

  constexpr T* Transition(int64_t slot) const { return transitions + slot * width * width; }
  constexpr T* Row(int64_t id) const { return v + id * width; }
};

template <typename T>
struct FactoredBatch {
  const T* hidden;        // H [B, D]
  const int64_t* labels;  // [B, K], padded with -1
  int64_t batch;          // B
  int64_t num_labels;     // K
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_STATE_H_
