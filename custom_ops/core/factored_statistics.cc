// SPDX-License-Identifier: Apache-2.0

#include "core/factored_statistics.h"

#include "core/factored_coordinates.h"
#include "core/hidden_product.h"
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
  const CurrentRows<T> rows(state, targets.classes, execution);
  const HiddenProduct<T> products(batch.hidden, examples, width, execution);

  const Product<T> gram = {batch.hidden,        width, 1, state.gram, width, width,
                           outputs.gram_hidden, width, 1, 0,          width};
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
  // Rows of V are read from main memory during work that does not need them.
  execution.Run({
      {"statistics: pack H", {rows.Gather(), products.Pack()}},
      {"statistics: H Q, H U^T, V T",
       {execution.Multiply(examples, gram), products.Transposed(state.u, outputs.u_hidden),
        rows.CatchUp()}},
      {"statistics: a, q, s",
       {execution.RowTasks(examples, 16.0 * width * (3 + num_labels), finish),
        update_rows ? rows.WriteBack() : Tasks{0, nullptr}}},
  });
  if (update_rows) rows.SetSlots();
}

template void FactoredStatistics(const FactoredState<float>&, const FactoredBatch<float>&, bool,
                                 const DenseExecution<float>&,
                                 const FactoredStatisticsOutputs<float>&);
template void FactoredStatistics(const FactoredState<double>&, const FactoredBatch<double>&, bool,
                                 const DenseExecution<double>&,
                                 const FactoredStatisticsOutputs<double>&);

}  // namespace tfx::core
