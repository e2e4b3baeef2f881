// SPDX-License-Identifier: Apache-2.0
//
// Lazy re-anchoring: W = V U stays exact while U gets ill-conditioned, but its rounding errors
// grow. A new anchor starts afresh with U = I, without the product V U over all rows: it notes U in
// the transitions, and a row is brought to the current coordinates when it is needed.

#ifndef TFX_LARGEOUT_CORE_FACTORED_COORDINATES_H_
#define TFX_LARGEOUT_CORE_FACTORED_COORDINATES_H_

#include <cstdint>
#include <vector>

#include "core/dense_execution.h"
#include "core/factored_state.h"

namespace tfx::core {

// Rows of V in the current coordinates: pointers to V, or to memory of the workspace where the row
// of V is stale. Changes nothing.
// Cost: O(n), and O(D^2) a stale row.
template <typename T>
std::vector<const T*> CurrentRows(const FactoredState<T>& state, const std::vector<int64_t>& ids,
                                  const DenseExecution<T>& execution);

// Writes the current rows of `ids`, from CurrentRows, back to V where they were stale.
template <typename T>
void WriteRows(const FactoredState<T>& state, const std::vector<int64_t>& ids,
               const std::vector<const T*>& rows);

// Notes that a row is now in slot `slot`.
template <typename T>
void MoveToSlot(const FactoredState<T>& state, int64_t id, int32_t slot);

// Brings every row to the current coordinates. W stays what it is.
// Cost: O(1) if no row is stale, else O(C), and O(D^2) a stale row.
template <typename T>
void Settle(const FactoredState<T>& state, const DenseExecution<T>& execution);

// Starts afresh with U = P = I. W stays what it is.
// Cost: O(D^3) a slot in use; if all are, O(C), and O(D^2) a row of the smallest.
template <typename T>
void Reanchor(const FactoredState<T>& state, const DenseExecution<T>& execution);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_COORDINATES_H_
