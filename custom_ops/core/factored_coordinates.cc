// SPDX-License-Identifier: Apache-2.0

#include "core/factored_coordinates.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/prefetch.h"

namespace tfx::core {
namespace {

constexpr int64_t kSweepElements = 1 << 18;  // of V that are moved at a time

template <typename T>
void SetToIdentity(T* matrix, int64_t n) {
  std::fill(matrix, matrix + n * n, T{0});
  for (int64_t i = 0; i < n; ++i) matrix[i * n + i] = 1;
}

}  // namespace

template <typename T>
CurrentRows<T>::CurrentRows(const FactoredState<T>& state, const std::vector<int64_t>& ids,
                            const DenseExecution<T>& execution)
    : state_(state), ids_(ids), execution_(execution) {
  Assign<const T*>(&rows_, static_cast<int64_t>(ids.size()), nullptr);
  std::vector<std::vector<int64_t>> of_slot(state.num_slots);
  for (size_t i = 0; i < ids.size(); ++i) {
    rows_[i] = state.Row(ids[i]);
    const uint8_t slot = state.row_slot[ids[i]];
    if (slot != *state.current_slot) of_slot[slot].push_back(static_cast<int64_t>(i));
  }
  int64_t num_of_slots = 0;
  for (const auto& rows : of_slot) num_of_slots += static_cast<int64_t>(rows.size());
  Reserve(&stale_, num_of_slots);
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
Sweep<T>::Sweep(const FactoredState<T>& state, const DenseExecution<T>& execution)
    : state_(state),
      execution_(execution),
      most_(std::clamp<int64_t>(kSweepElements / state.width, 1,
                                std::max<int64_t>(state.num_classes, 1))),
      ids_(execution.template Take<int64_t>(most_)),
      by_slot_(execution.template Take<int64_t>(most_)),
      gathered_(execution.template Take<T>(most_ * state.width)),
      caught_up_(execution.template Take<T>(most_ * state.width)),
      phases_(
          {{"catch up: V T",
            {execution.RowTasks(most_, 2.0 * state.width * state.width,
                                [this](int64_t begin, int64_t end, int) { Move(begin, end); })}}},
          execution.num_workers, execution.parallel_for) {}

template <typename T>
void Sweep<T>::Move(int64_t begin, int64_t end) const {
  const int64_t width = state_.width;
  end = std::min(end, size_);
  for (int64_t j = begin; j < end; ++j) {
    std::memcpy(gathered_ + j * width, state_.Row(by_slot_[j]), width * sizeof(T));
  }
  for (int64_t next; begin < end; begin = next) {
    const uint8_t slot = state_.row_slot[by_slot_[begin]];
    next = begin + 1;
    while (next < end && state_.row_slot[by_slot_[next]] == slot) ++next;
    execution_.kernels.multiply({gathered_, width, 1, state_.Transition(slot), width, width,
                                 caught_up_, width, 1, 0, width},
                                begin, next, false);
    for (int64_t j = begin; j < next; ++j) {
      std::memcpy(state_.Row(by_slot_[j]), caught_up_ + j * width, width * sizeof(T));
    }
  }
}

template <typename T>
void Sweep<T>::MoveAll() {
  int64_t places[257] = {};
  for (int64_t j = 0; j < size_; ++j) ++places[state_.row_slot[ids_[j]] + 1];
  for (int slot = 0; slot < 256; ++slot) places[slot + 1] += places[slot];
  for (int64_t j = 0; j < size_; ++j) by_slot_[places[state_.row_slot[ids_[j]]]++] = ids_[j];
  phases_.Run();
  for (int64_t j = 0; j < size_; ++j) MoveToSlot(state_, ids_[j], *state_.current_slot);
  size_ = 0;
}

template <typename T>
template <typename Predicate>
void Sweep<T>::Run(const Predicate& is_wanted) {
  for (int64_t id = 0; id < state_.num_classes; ++id) {
    if (!is_wanted(state_.row_slot[id])) continue;
    ids_[size_++] = id;
    if (size_ == most_) MoveAll();
  }
  MoveAll();
}

template <typename T>
NewAnchor<T>::NewAnchor(const FactoredState<T>& state, const DenseExecution<T>& execution)
    : state_(state),
      execution_(execution),
      sweep_(state, execution),
      before_(execution.template Take<T>(state.width * state.width)),
      product_({{"new anchor: T U",
                 {execution.RowTasks(
                     state.width, 2.0 * state.width * state.width,
                     [this](int64_t begin, int64_t end, int) { MultiplyByU(begin, end); })}}},
               execution.num_workers, execution.parallel_for) {}

template <typename T>
void NewAnchor<T>::MultiplyByU(int64_t begin, int64_t end) const {
  const int64_t width = state_.width;
  execution_.kernels.multiply(
      {before_, width, 1, state_.u, width, width, transition_, width, 1, 0, width}, begin, end,
      false);
}

// A slot without rows that isn't the current one; the smallest is emptied for it if need be.
template <typename T>
int32_t NewAnchor<T>::FreeSlot() {
  int32_t best = -1;
  for (int32_t slot = 0; slot < state_.num_slots; ++slot) {
    if (slot == *state_.current_slot) continue;
    if (best < 0 || state_.slot_rows[slot] < state_.slot_rows[best]) best = slot;
  }
  if (state_.slot_rows[best] > 0) sweep_.Run([&](uint8_t slot) { return slot == best; });
  return best;
}

template <typename T>
void NewAnchor<T>::Start() {
  const int64_t width = state_.width, size = width * width;
  const int32_t next = FreeSlot();
  for (int64_t slot = 0; slot < state_.num_slots; ++slot) {
    if (state_.slot_rows[slot] == 0) continue;
    transition_ = state_.Transition(slot);
    if (slot == *state_.current_slot) {
      std::memcpy(transition_, state_.u, size * sizeof(T));
      continue;
    }
    std::memcpy(before_, transition_, size * sizeof(T));
    product_.Run();
  }
  for (T* matrix : {state_.Transition(next), state_.u, state_.u_inverse_transpose})
    SetToIdentity(matrix, width);
  *state_.current_slot = next;
}

template <typename T>
void Settle(const FactoredState<T>& state, const DenseExecution<T>& execution) {
  if (state.slot_rows[*state.current_slot] == state.num_classes) return;
  const Workspace::Scope scope(execution.workspace);
  Sweep<T>(state, execution).Run([&](uint8_t slot) { return slot != *state.current_slot; });
}

#define TFX_INSTANTIATE(T)                                             \
  template class CurrentRows<T>;                                       \
  template class Sweep<T>;                                             \
  template class NewAnchor<T>;                                         \
  template void MoveToSlot(const FactoredState<T>&, int64_t, int32_t); \
  template void Settle(const FactoredState<T>&, const DenseExecution<T>&)
TFX_INSTANTIATE(float);
TFX_INSTANTIATE(double);
#undef TFX_INSTANTIATE

}  // namespace tfx::core
