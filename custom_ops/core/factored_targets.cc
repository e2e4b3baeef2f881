// SPDX-License-Identifier: Apache-2.0

#include "core/factored_targets.h"

#include <algorithm>

#include "core/factored_update.h"

namespace tfx::core {

template <typename T>
FactoredTargets<T>::FactoredTargets(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                                    const DenseExecution<T>& execution)
    : batch(batch.batch),
      num_labels(batch.num_labels),
      width(state.width),
      classes(batch.labels, batch.batch, batch.num_labels),
      rows(state, classes.classes, execution) {
  rows.Run();
}

template <typename T>
void FactoredTargets<T>::Sum(int64_t i, const T* g_target, const DenseKernels<T>& kernels,
                             T* sum) const {
  std::fill(sum, sum + width, T{0});
  ForEachLabel(i, g_target, [&](int64_t place, T g) { kernels.add(g, rows[place], width, sum); });
}

template struct FactoredTargets<float>;
template struct FactoredTargets<double>;

}  // namespace tfx::core
