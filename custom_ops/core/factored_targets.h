// SPDX-License-Identifier: Apache-2.0
//
// The rows of V that the labels of a batch name, and what they add to the gradient.

#ifndef TFX_LARGEOUT_CORE_FACTORED_TARGETS_H_
#define TFX_LARGEOUT_CORE_FACTORED_TARGETS_H_

#include <cstdint>

#include "core/dense_execution.h"
#include "core/factored_coordinates.h"
#include "core/factored_state.h"
#include "core/merged_labels.h"

namespace tfx::core {

// The classes that the labels of a batch name, each once.
template <typename T>
struct FactoredTargets {
  // REQUIRES: the state and the memory of `execution` outlive this object.
  FactoredTargets(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                  const DenseExecution<T>& execution);

  int64_t size() const { return classes.size(); }

  // Calls visit(place in classes, g_a) for each label of example i.
  template <typename Visit>
  void ForEachLabel(int64_t i, const T* g_target, const Visit& visit) const {
    for (int64_t at = i * num_labels; at < (i + 1) * num_labels; ++at) {
      if (classes.places[at] >= 0) visit(classes.places[at], g_target[at]);
    }
  }

  // Calls visit(example, g_a) for each place where a target stands.
  template <typename Visit>
  void ForEachExample(int64_t target, const T* g_target, const Visit& visit) const {
    for (int64_t j = classes.offsets[target]; j < classes.offsets[target + 1]; ++j) {
      const int64_t at = classes.positions[j];
      visit(at / num_labels, g_target[at]);
    }
  }

  // Sets sum [D] to the sum of g_a V[y] over the labels y of example i.
  void Sum(int64_t i, const T* g_target, const DenseKernels<T>& kernels, T* sum) const;

  const int64_t batch, num_labels, width;
  const MergedLabels classes;
  const CurrentRows<T> rows;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_TARGETS_H_
