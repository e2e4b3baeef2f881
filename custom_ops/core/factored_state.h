// SPDX-License-Identifier: Apache-2.0
//
// The state of a factored layer: W = V U + 1 w^T, and what is kept beside it.

#ifndef TFX_LARGEOUT_CORE_FACTORED_STATE_H_
#define TFX_LARGEOUT_CORE_FACTORED_STATE_H_

#include <algorithm>
#include <cstdint>
#include <functional>

#include "core/dense_kernels.h"
#include "core/parallel_for.h"
#include "core/phases.h"
#include "core/workspace.h"

namespace tfx::core {

// Rows are classes. For a row r of V in slot e, W[r] = V[r] transitions[e] U + w; the transition of
// the current slot is I.
template <typename T>
struct FactoredState {
  T* v;                   // V [C, D]
  T* u;                   // U [D, D]
  T* p;                   // P = U^-T [D, D]
  T* q;                   // Q = W^T W [D, D], symmetric to the last bit
  T* w;                   // [D]
  T* c;                   // W^T 1 [D]
  T* transitions;         // [num_slots, D, D]
  uint8_t* row_slot;      // [C]
  int64_t* slot_rows;     // [num_slots]: how many rows are in each slot
  int32_t* current_slot;  // [1]
  int64_t num_classes;    // C
  int64_t width;          // D
  int64_t num_slots;

  T* Transition(int64_t slot) const { return transitions + slot * width * width; }
  T* Row(int64_t id) const { return v + id * width; }
};

template <typename T>
struct FactoredBatch {
  const T* hidden;        // H [B, D]
  const int64_t* labels;  // [B, K], padded with -1
  int64_t batch;          // B
  int64_t num_labels;     // K
};

// What a computation runs on.
template <typename T>
struct FactoredResources {
  const DenseKernels<T>& kernels;
  int num_workers;
  const ParallelFor& parallel_for;
  Workspace& workspace;

  void Run(const std::vector<Phase>& phases) const { RunPhases(phases, num_workers, parallel_for); }

  // Elements of a matrix [depth, columns] in panels.
  int64_t PanelsSize(int64_t depth, int64_t columns) const {
    return depth * NumPanels(columns) * kernels.panel_width;
  }

  int64_t NumPanels(int64_t columns) const {
    return (columns + kernels.panel_width - 1) / kernels.panel_width;
  }

  // Splits rows into tasks that are long enough to be worth one.
  Tasks RowTasks(int64_t rows, double flop_of_row,
                 std::function<void(int64_t begin, int64_t end, int worker)> run) const {
    const int64_t block = RowsOfTask(flop_of_row);
    return {(rows + block - 1) / block, [=](int64_t task, int worker) {
              run(task * block, std::min(rows, (task + 1) * block), worker);
            }};
  }

  // The most rows that RowTasks gives a task.
  int64_t RowsOfTask(double flop_of_row) const {
    const double tiles = kTaskFlop / (std::max(1.0, flop_of_row) * kernels.tile_rows);
    return kernels.tile_rows * std::clamp<int64_t>(static_cast<int64_t>(tiles + 0.5), 1, 64);
  }

  static constexpr double kTaskFlop = 1.5e6;  // about 20 microseconds
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_STATE_H_
