// SPDX-License-Identifier: Apache-2.0

#include "core/factored_coordinates.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/prefetch.h"

namespace tfx::core {
namespace {

constexpr int64_t kSweepElements = 1 << 20;  // of V that are moved at a time

// Moves the rows whose slot `is_wanted` to the current one, block by block.
template <typename T, typename Predicate>
void Sweep(const FactoredState<T>& state, const DenseExecution<T>& execution,
           const Predicate& is_wanted) {
  const size_t most = std::max<int64_t>(1, kSweepElements / state.width);
  std::vector<int64_t> ids;
  auto move = [&] {
    Workspace::Scope scope(execution.workspace);
    const CurrentRows<T> rows(state, ids, execution);
    rows.Run();
    execution.Run({{"catch up: write", {rows.WriteBack()}}});
    rows.SetSlots();
    ids.clear();
  };
  for (int64_t id = 0; id < state.rows.num_rows; ++id) {
    if (!is_wanted(state.row_slot[id])) continue;
    ids.push_back(id);
    if (ids.size() == most) move();
  }
  move();
}

// A slot without rows that isn't the current one; the smallest is emptied for it if need be.
template <typename T>
int32_t FreeSlot(const FactoredState<T>& state, const DenseExecution<T>& execution) {
  int32_t best = -1;
  for (int32_t slot = 0; slot < state.num_slots; ++slot) {
    if (slot == *state.current_slot) continue;
    if (best < 0 || state.slot_rows[slot] < state.slot_rows[best]) best = slot;
  }
  if (state.slot_rows[best] > 0) {
    Sweep(state, execution, [&](uint8_t slot) { return slot == best; });
  }
  return best;
}

template <typename T>
void SetToIdentity(T* matrix, int64_t n) {
  std::fill(matrix, matrix + n * n, T{0});
  for (int64_t i = 0; i < n; ++i) matrix[i * n + i] = 1;
}

}  // namespace

template <typename T>
CurrentRows<T>::CurrentRows(const FactoredState<T>& state, const std::vector<int64_t>& ids,
                            const DenseExecution<T>& execution)
    : state_(state), ids_(ids), execution_(execution), rows_(ids.size()) {
  std::vector<std::vector<int64_t>> of_slot(state.num_slots);
  for (size_t i = 0; i < ids.size(); ++i) {
    rows_[i] = state.Row(ids[i]);
    const uint8_t slot = state.row_slot[ids[i]];
    if (slot != *state.current_slot) of_slot[slot].push_back(static_cast<int64_t>(i));
  }
  const int64_t width = state.width, most = execution.RowsOfTask(2.0 * width * width);
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    auto begin = static_cast<int64_t>(stale_.size());
    stale_.insert(stale_.end(), of_slot[slot].begin(), of_slot[slot].end());
    const auto end = static_cast<int64_t>(stale_.size());
    for (; begin < end; begin += most) {
      blocks_.push_back({slot, begin, std::min(begin + most, end)});
    }
  }
  const auto num_stale = static_cast<int64_t>(stale_.size());
  gathered_ = execution.template Take<T>(num_stale * width);
  caught_up_ = execution.template Take<T>(num_stale * width);
  for (int64_t j = 0; j < num_stale; ++j) rows_[stale_[j]] = caught_up_ + j * width;
}

template <typename T>
Tasks CurrentRows<T>::Gather() const {
  const int64_t width = state_.width, num_rows = static_cast<int64_t>(ids_.size());
  const auto num_stale = static_cast<int64_t>(stale_.size());
  // Stale rows first, then all.
  return execution_.RowTasks(
      num_stale + num_rows, 100.0 * width, [=](int64_t begin, int64_t end, int) {
        for (int64_t j = begin; j < std::min(end, num_stale); ++j) {
          std::memcpy(gathered_ + j * width, state_.Row(ids_[stale_[j]]), width * sizeof(T));
        }
        for (int64_t j = std::max(begin, num_stale); j < end; ++j) {
          if (!IsStale(j - num_stale)) PrefetchBytes(rows_[j - num_stale], width * sizeof(T));
        }
      });
}

template <typename T>
Tasks CurrentRows<T>::CatchUp() const {
  return {static_cast<int64_t>(blocks_.size()), [this](int64_t task, int) {
            const Block& block = blocks_[task];
            const int64_t width = state_.width;
            execution_.kernels.multiply({gathered_, width, 1, state_.Transition(block.slot), width,
                                         width, caught_up_, width, 1, 0, width},
                                        block.begin, block.end, false);
          }};
}

template <typename T>
void CurrentRows<T>::Run() const {
  if (stale_.empty()) return;
  execution_.Run({{"catch up: gather", {Gather()}}, {"catch up: V T", {CatchUp()}}});
}

template <typename T>
Tasks CurrentRows<T>::WriteBack() const {
  const int64_t width = state_.width;
  return execution_.RowTasks(stale_.size(), 100.0 * width, [=](int64_t begin, int64_t end, int) {
    for (int64_t j = begin; j < end; ++j) {
      std::memcpy(state_.Row(ids_[stale_[j]]), caught_up_ + j * width, width * sizeof(T));
    }
  });
}

template <typename T>
void CurrentRows<T>::SetSlots() const {
  for (int64_t i : stale_) MoveToSlot(state_, ids_[i], *state_.current_slot);
}

template <typename T>
void MoveToSlot(const FactoredState<T>& state, int64_t id, int32_t slot) {
  --state.slot_rows[state.row_slot[id]];
  ++state.slot_rows[slot];
  state.row_slot[id] = static_cast<uint8_t>(slot);
}

template <typename T>
void Settle(const FactoredState<T>& state, const DenseExecution<T>& execution) {
  if (state.slot_rows[*state.current_slot] == state.rows.num_rows) return;
  Sweep(state, execution, [&](uint8_t slot) { return slot != *state.current_slot; });
}

template <typename T>
void Reanchor(const FactoredState<T>& state, const DenseExecution<T>& execution) {
  const int64_t width = state.width, size = width * width;
  const int32_t next = FreeSlot(state, execution);
  Workspace::Scope scope(execution.workspace);
  T* before = execution.template Take<T>(size);
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    if (state.slot_rows[slot] == 0) continue;
    T* transition = state.Transition(slot);
    if (slot == *state.current_slot) {
      std::memcpy(transition, state.u, size * sizeof(T));
      continue;
    }
    std::memcpy(before, transition, size * sizeof(T));
    const Product<T> product = {before,     width, 1, state.u, width, width,
                                transition, width, 1, 0,       width};
    execution.Run(
        {{"new anchor: T U",
          {execution.RowTasks(width, 2.0 * width * width, [&](int64_t begin, int64_t end, int) {
            execution.kernels.multiply(product, begin, end, false);
          })}}});
  }
  for (T* matrix : {state.Transition(next), state.u, state.u_inverse_transpose})
    SetToIdentity(matrix, width);
  *state.current_slot = next;
}

#define TFX_INSTANTIATE(T)                                                 \
  template class CurrentRows<T>;                                           \
  template void MoveToSlot(const FactoredState<T>&, int64_t, int32_t);     \
  template void Settle(const FactoredState<T>&, const DenseExecution<T>&); \
  template void Reanchor(const FactoredState<T>&, const DenseExecution<T>&)
TFX_INSTANTIATE(float);
TFX_INSTANTIATE(double);
#undef TFX_INSTANTIATE

}  // namespace tfx::core
