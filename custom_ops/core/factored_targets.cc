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
      classes(batch.labels, batch.batch, batch.num_labels) {
  Assign<const T*>(&rows, size(), nullptr);
  Reserve(&owned, size());
  Reserve(&ids, size());
  for (int64_t place = 0; place < size(); ++place) {
    const int64_t row = state.rows.RowOf(classes.classes[place]);
    if (row < 0) continue;
    owned.push_back(place);
    ids.push_back(row);
  }
  const CurrentRows<T> current(state, ids, execution);
  current.Run();
  for (size_t j = 0; j < owned.size(); ++j) rows[owned[j]] = current[j];
}

template <typename T>
void FactoredTargets<T>::Sum(int64_t i, const T* g_target, const DenseKernels<T>& kernels,
                             T* sum) const {
  std::fill(sum, sum + width, T{0});
  ForEachLabel(i, g_target, [&](int64_t place, T g) {
    if (rows[place] != nullptr) kernels.add(g, rows[place], width, sum);
  });
}

template <typename T>
void FactoredTargetSums(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                        const T* g_target, const DenseExecution<T>& execution, T* target_sums) {
  const Workspace::Scope scope(execution.workspace);
  const FactoredTargets<T> targets(state, batch, execution);
  const int64_t width = state.width;
  const auto sum = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      targets.Sum(i, g_target, execution.kernels, target_sums + i * width);
    }
  };
  execution.Run({{"gradient: sum V[y]",
                  {execution.RowTasks(batch.batch, 8.0 * width * (1 + batch.num_labels), sum)}}});
}

template struct FactoredTargets<float>;
template struct FactoredTargets<double>;
template void FactoredTargetSums(const FactoredState<float>&, const FactoredBatch<float>&,
                                 const float*, const DenseExecution<float>&, float*);
template void FactoredTargetSums(const FactoredState<double>&, const FactoredBatch<double>&,
                                 const double*, const DenseExecution<double>&, double*);

}  // namespace tfx::core
