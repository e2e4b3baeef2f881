// SPDX-License-Identifier: Apache-2.0

#include "core/factored_coordinates.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tfx::core {
namespace {

constexpr int64_t kSweepElements = 1 << 20;  // of V that are moved at a time

template <typename T>
Tasks PackSquare(const T* matrix, int64_t width, const DenseExecution<T>& execution, T* panels) {
  return execution.RowTasks(
      width, 16.0 * width, [=, &kernels = execution.kernels](int64_t begin, int64_t end, int) {
        kernels.pack(matrix, width, width, width, nullptr, begin, end, panels);
      });
}

// left [n, D] times a matrix [D, D] in panels.
template <typename T>
Tasks MultiplyRows(const T* left, int64_t n, const T* panels, int64_t width,
                   const DenseExecution<T>& execution, T* product) {
  const Product<T> p = {left, width, 1, panels, width, width, product, width, 1, 0};
  return execution.RowTasks(n, 2.0 * width * width,
                            [=, &kernels = execution.kernels](int64_t begin, int64_t end, int) {
                              kernels.multiply(p, begin, end, false);
                            });
}

// Stale rows of one slot, on their way to the current coordinates.
template <typename T>
struct Transit {
  Transit(const FactoredState<T>& state, const DenseExecution<T>& execution, int64_t slot,
          std::vector<int64_t> ids)
      : state(state),
        execution(execution),
        slot(slot),
        ids(std::move(ids)),
        rows(Take(this->ids.size() * state.width)),
        moved(Take(this->ids.size() * state.width)),
        panels(Take(execution.PanelsSize(state.width, state.width))) {}

  T* Take(int64_t n) const { return execution.template Take<T>(n); }

  Tasks Gather() const {
    const int64_t width = state.width;
    return execution.RowTasks(ids.size(), 100.0 * width, [=](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(rows + i * width, state.Row(ids[i]), width * sizeof(T));
      }
    });
  }

  Tasks Pack() const { return PackSquare(state.Transition(slot), state.width, execution, panels); }

  Tasks Multiply() const {
    return MultiplyRows(rows, ids.size(), panels, state.width, execution, moved);
  }

  const FactoredState<T>& state;
  const DenseExecution<T>& execution;
  int64_t slot;
  std::vector<int64_t> ids;
  T *rows, *moved, *panels;
};

// Moves the rows whose slot `is_wanted` to the current one, block by block.
template <typename T, typename Predicate>
void Sweep(const FactoredState<T>& state, const DenseExecution<T>& execution,
           const Predicate& is_wanted) {
  const size_t most = std::max<int64_t>(1, kSweepElements / state.width);
  std::vector<int64_t> ids;
  auto move = [&] {
    Workspace::Scope scope(execution.workspace);
    WriteRows(state, ids, CurrentRows(state, ids, execution));
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
std::vector<const T*> CurrentRows(const FactoredState<T>& state, const std::vector<int64_t>& ids,
                                  const DenseExecution<T>& execution) {
  std::vector<const T*> rows(ids.size());
  std::vector<std::vector<int64_t>> stale(state.num_slots);  // by slot: places in `ids`
  for (size_t i = 0; i < ids.size(); ++i) {
    rows[i] = state.Row(ids[i]);
    const uint8_t slot = state.row_slot[ids[i]];
    if (slot != *state.current_slot) stale[slot].push_back(static_cast<int64_t>(i));
  }
  std::vector<Transit<T>> transits;
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    if (stale[slot].empty()) continue;
    std::vector<int64_t> of_slot;
    for (int64_t i : stale[slot]) of_slot.push_back(ids[i]);
    transits.emplace_back(state, execution, slot, std::move(of_slot));
    for (size_t j = 0; j < stale[slot].size(); ++j) {
      rows[stale[slot][j]] = transits.back().moved + j * state.width;
    }
  }
  if (transits.empty()) return rows;
  Phase before{"catch up: gather", {}}, products{"catch up: V T", {}};
  for (const Transit<T>& transit : transits) {
    before.tasks.push_back(transit.Gather());
    before.tasks.push_back(transit.Pack());
    products.tasks.push_back(transit.Multiply());
  }
  execution.Run({before, products});
  return rows;
}

template <typename T>
void WriteRows(const FactoredState<T>& state, const std::vector<int64_t>& ids,
               const std::vector<const T*>& rows) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (rows[i] == state.Row(ids[i])) continue;
    std::memcpy(state.Row(ids[i]), rows[i], state.width * sizeof(T));
    MoveToSlot(state, ids[i], *state.current_slot);
  }
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
  T* panels = execution.template Take<T>(execution.PanelsSize(width, width));
  execution.Run({{"new anchor: pack", {PackSquare<T>(state.u, width, execution, panels)}}});
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    if (state.slot_rows[slot] == 0) continue;
    T* transition = state.Transition(slot);
    if (slot == *state.current_slot) {
      std::memcpy(transition, state.u, size * sizeof(T));
    } else {
      std::memcpy(before, transition, size * sizeof(T));
      execution.Run({{"new anchor: T U",
                      {MultiplyRows<T>(before, width, panels, width, execution, transition)}}});
    }
  }
  for (T* matrix : {state.Transition(next), state.u, state.u_inverse_transpose})
    SetToIdentity(matrix, width);
  *state.current_slot = next;
}

#define TFX_INSTANTIATE(T)                                                                         \
  template std::vector<const T*> CurrentRows(const FactoredState<T>&, const std::vector<int64_t>&, \
                                             const DenseExecution<T>&);                            \
  template void WriteRows(const FactoredState<T>&, const std::vector<int64_t>&,                    \
                          const std::vector<const T*>&);                                           \
  template void MoveToSlot(const FactoredState<T>&, int64_t, int32_t);                             \
  template void Settle(const FactoredState<T>&, const DenseExecution<T>&);                         \
  template void Reanchor(const FactoredState<T>&, const DenseExecution<T>&)
TFX_INSTANTIATE(float);
TFX_INSTANTIATE(double);
#undef TFX_INSTANTIATE

}  // namespace tfx::core
