// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_DENSE_EXECUTION_H_
#define TFX_LARGEOUT_CORE_DENSE_EXECUTION_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "core/execution.h"

namespace tfx::core {

// An Execution with the dense kernels for T, float or double, and the split of work into tasks.
template <typename T>
struct DenseExecution : Execution {
  // Implicit: only another view.
  DenseExecution(const Execution& execution)
      : Execution(execution), kernels(DenseKernelsOf<T>(execution.set)) {}

  // Elements of a matrix [depth, columns] in panels.
  int64_t PanelsSize(int64_t depth, int64_t columns) const {
    return depth * NumPanels(columns) * kernels.panel_width;
  }

  int64_t NumPanels(int64_t columns) const { return BlocksOf(columns, kernels.panel_width); }

  // Splits rows into tasks of a sufficient length.
  Tasks RowTasks(int64_t rows, double flop_of_row,
                 std::function<void(int64_t begin, int64_t end, int worker)> run) const {
    return InBlocks(rows, RowsOfTask(flop_of_row), std::move(run));
  }

  // The rows of C = beta C + alpha A B, in such tasks.
  Tasks Multiply(int64_t rows, const Product<T>& product) const {
    return RowTasks(rows, 2.0 * product.depth * product.columns,
                    [this, product](int64_t begin, int64_t end, int) {
                      kernels.multiply(product, begin, end, false);
                    });
  }

  // The largest number of rows per task of RowTasks.
  int64_t RowsOfTask(double flop_of_row) const {
    const double tiles = kTaskFlop / (std::max(1.0, flop_of_row) * kernels.tile_rows);
    return kernels.tile_rows * std::clamp<int64_t>(static_cast<int64_t>(tiles + 0.5), 1, 64);
  }

  static constexpr double kTaskFlop = 1.5e6;  // about 20 microseconds

  const DenseKernels<T>& kernels;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_DENSE_EXECUTION_H_
