// SPDX-License-Identifier: Apache-2.0

#include "core/factored_statistics.h"

#include <vector>

#include "core/factored_coordinates.h"
#include "core/merged_labels.h"

namespace tfx::core {

template <typename T>
void FactoredStatistics(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                        bool update_rows, const DenseExecution<T>& execution,
                        const FactoredStatisticsOutputs<T>& outputs) {
  const DenseKernels<T>& kernels = execution.kernels;
  const int64_t width = state.width, examples = batch.batch, num_labels = batch.num_labels;
  Workspace::Scope scope(execution.workspace);
  const MergedLabels targets(batch.labels, examples, num_labels);
  const std::vector<const T*> rows = CurrentRows(state, targets.classes, execution);
  if (update_rows) WriteRows(state, targets.classes, rows);

  T* hidden_panels = execution.template Take<T>(execution.PanelsSize(width, examples));
  const double flop_of_row = 2.0 * width * examples;
  const int64_t rows_of_task = execution.RowsOfTask(flop_of_row);
  T* blocks = execution.template Take<T>(execution.num_workers * rows_of_task * examples);

  // left H^T, [D, B], a block of rows at a time, goes to `product` as H left^T.
  auto multiply_hidden = [&](const T* left, T* product) {
    return execution.RowTasks(width, flop_of_row, [=, &kernels](int64_t begin, int64_t end, int w) {
      T* block = blocks + w * rows_of_task * examples;
      const Product<T> p = {
          left + begin * width, width, 1, hidden_panels, width, examples, block, examples, 1, 0};
      kernels.multiply(p, 0, end - begin, false);
      kernels.transpose(block, examples, end - begin, examples, product + begin, width);
    });
  };
  auto finish = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const T* h = batch.hidden + i * width;
      outputs.sum_of_squares[i] = kernels.dot(h, outputs.gram_hidden + i * width, width);
      outputs.sum[i] = kernels.dot(h, state.row_sum, width);
      const T shift = kernels.dot(h, state.shift, width);
      for (int64_t at = i * num_labels; at < (i + 1) * num_labels; ++at) {
        const int64_t place = targets.places[at];
        outputs.target_logits[at] =
            place < 0 ? T{0}
                      : kernels.dot(rows[place], outputs.u_hidden + i * width, width) + shift;
      }
    }
  };
  // The rows of V come from main memory: asked for here, they arrive during the products.
  auto prefetch = [&](int64_t begin, int64_t end, int) {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t target = begin; target < end; ++target) {
      for (int64_t d = 0; d < width; d += kLine) __builtin_prefetch(rows[target] + d);
    }
  };
  const Tasks pack = {execution.NumPanels(examples), [&](int64_t panel, int) {
                        kernels.pack_transposed(batch.hidden, width, width, examples, nullptr,
                                                panel, panel + 1, hidden_panels);
                      }};
  execution.Run({
      {"statistics: pack H", {execution.RowTasks(targets.size(), 100.0 * width, prefetch), pack}},
      {"statistics: H Q, H U^T",
       {multiply_hidden(state.gram, outputs.gram_hidden),
        multiply_hidden(state.u, outputs.u_hidden)}},
      {"statistics: a, q, s",
       {execution.RowTasks(examples, 16.0 * width * (3 + num_labels), finish)}},
  });
}

template void FactoredStatistics(const FactoredState<float>&, const FactoredBatch<float>&, bool,
                                 const DenseExecution<float>&,
                                 const FactoredStatisticsOutputs<float>&);
template void FactoredStatistics(const FactoredState<double>&, const FactoredBatch<double>&, bool,
                                 const DenseExecution<double>&,
                                 const FactoredStatisticsOutputs<double>&);

}  // namespace tfx::core
