// SPDX-License-Identifier: Apache-2.0

#include "core/factored_targets.h"

#include <algorithm>

#include "core/factored_coordinates.h"
#include "core/factored_update.h"

namespace tfx::core {

template <typename T>
FactoredTargets<T>::FactoredTargets(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                                    const DenseExecution<T>& execution)
    : batch(batch.batch),
      num_labels(batch.num_labels),
      width(state.width),
      classes(batch.labels, batch.batch, batch.num_labels),
      rows(classes.size()) {
  for (int64_t place = 0; place < size(); ++place) {
    const int64_t row = state.rows.RowOf(classes.classes[place]);
    if (row < 0) continue;
    owned.push_back(place);
    ids.push_back(row);
  }
  const std::vector<const T*> current = CurrentRows(state, ids, execution);
  for (size_t j = 0; j < owned.size(); ++j) rows[owned[j]] = current[j];
}

template <typename T>
Tasks FactoredTargets<T>::Sum(const T* g_target, const DenseExecution<T>& execution,
                              T* sums) const {
  return execution.RowTasks(batch, 8.0 * width * (1 + num_labels),
                            [=, &kernels = execution.kernels](int64_t begin, int64_t end, int) {
                              for (int64_t i = begin; i < end; ++i) {
                                T* sum = sums + i * width;
                                std::fill(sum, sum + width, T{0});
                                ForEachLabel(i, g_target, [&](int64_t place, T g) {
                                  if (rows[place] != nullptr)
                                    kernels.add(g, rows[place], width, sum);
                                });
                              }
                            });
}

template <typename T>
void FactoredTargetSums(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                        const T* g_target, const DenseExecution<T>& execution, T* target_sums) {
  const Workspace::Scope scope(execution.workspace);
  const FactoredTargets<T> targets(state, batch, execution);
  execution.Run({{"gradient: sum V[y]", {targets.Sum(g_target, execution, target_sums)}}});
}

template struct FactoredTargets<float>;
template struct FactoredTargets<double>;
template void FactoredTargetSums(const FactoredState<float>&, const FactoredBatch<float>&,
                                 const float*, const DenseExecution<float>&, float*);
template void FactoredTargetSums(const FactoredState<double>&, const FactoredBatch<double>&,
                                 const double*, const DenseExecution<double>&, double*);

}  // namespace tfx::core
