// SPDX-License-Identifier: Apache-2.0
//
// Lazy re-anchoring: when U gets ill-conditioned, W = V U is still exact, but its rounding errors
// grow. A new anchor resets U to I, without the product V U over all rows: it stores U in the
// transitions, and a row is converted to the current coordinates when needed.

#ifndef TFX_LARGEOUT_CORE_FACTORED_COORDINATES_H_
#define TFX_LARGEOUT_CORE_FACTORED_COORDINATES_H_

#include <cstdint>
#include <vector>

#include "core/dense_execution.h"
#include "core/factored_state.h"

namespace tfx::core {

// Rows of V in the current coordinates. Only WriteBack changes V. Tasks must run while this object
// lives.
template <typename T>
class CurrentRows {
 public:
  // REQUIRES: state, ids and the memory of `execution` outlive this object.
  CurrentRows(const FactoredState<T>& state, const std::vector<int64_t>& ids,
              const DenseExecution<T>& execution);
  CurrentRows(const CurrentRows&) = delete;
  CurrentRows& operator=(const CurrentRows&) = delete;

  // Row ids[i]: in V, or in the workspace if it is stale.
  const T* operator[](int64_t i) const { return rows_[i]; }

  // Copies the stale rows to contiguous memory, and prefetches the others, which are usually in
  // main memory.
  Tasks Gather() const;

  // Converts the stale rows to the current coordinates, in a phase after Gather.
  // Cost: 2 D^2 FLOP per stale row.
  Tasks CatchUp() const;

  // Gather and CatchUp, if any row is stale.
  void Run() const;

  // Writes the stale rows to V, in a phase after CatchUp; SetSlots must follow.
  Tasks WriteBack() const;
  void SetSlots() const;

 private:
  // Stale rows of one slot.
  struct Block {
    int64_t slot, begin, end;
  };

  bool IsStale(int64_t i) const { return rows_[i] != state_.Row(ids_[i]); }

  const FactoredState<T>& state_;
  const std::vector<int64_t>& ids_;
  const DenseExecution<T>& execution_;
  std::vector<const T*> rows_;
  std::vector<int64_t> stale_;  // positions in `ids`, by slot
  std::vector<Block> blocks_;   // of stale_
  T *gathered_, *caught_up_;    // [stale rows, D]
};

// Records that a row is now in slot `slot`.
template <typename T>
void MoveToSlot(const FactoredState<T>& state, int64_t id, int32_t slot);

// Converts rows to the current coordinates in place, in V, some at a time. All memory is allocated
// first: Run can't fail.
template <typename T>
class Sweep {
 public:
  // REQUIRES: the state and the memory of `execution` outlive this object.
  Sweep(const FactoredState<T>& state, const DenseExecution<T>& execution);

  // For the rows whose slot `is_wanted`.
  template <typename Predicate>
  void Run(const Predicate& is_wanted);

 private:
  void Move(int64_t begin, int64_t end) const;
  void MoveAll();

  const FactoredState<T>& state_;
  const DenseExecution<T>& execution_;
  const int64_t most_;
  int64_t size_ = 0;
  int64_t *ids_, *by_slot_;   // [most]: rows
  T *gathered_, *caught_up_;  // [most, D]
  PreparedPhases phases_;
};

// A reset to U = P = I, which does not change W. All memory is allocated first: Start can't fail.
//
// Cost: O(D^3) per slot in use; if all are, O(C), and O(D^2) per row of the smallest.
template <typename T>
class NewAnchor {
 public:
  // REQUIRES: the state and the memory of `execution` outlive this object.
  NewAnchor(const FactoredState<T>& state, const DenseExecution<T>& execution);

  void Start();

 private:
  void MultiplyByU(int64_t begin, int64_t end) const;
  int32_t FreeSlot();

  const FactoredState<T>& state_;
  const DenseExecution<T>& execution_;
  Sweep<T> sweep_;
  T* before_;                // [D, D]: a transition
  T* transition_ = nullptr;  // its new value
  PreparedPhases product_;
};

// Converts every row to the current coordinates. W does not change.
// Cost: O(1) if no row is stale, else O(C), and O(D^2) per stale row.
template <typename T>
void Settle(const FactoredState<T>& state, const DenseExecution<T>& execution);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_COORDINATES_H_
