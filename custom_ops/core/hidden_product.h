// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_HIDDEN_PRODUCT_H_
#define TFX_LARGEOUT_CORE_HIDDEN_PRODUCT_H_

#include <cstdint>

#include "core/dense_execution.h"

namespace tfx::core {

// Products of one batch H [B, D] with the transposes of matrices. Tasks must run while this object
// lives, and Pack in a phase before the others.
template <typename T>
class HiddenProduct {
 public:
  // REQUIRES: the memory of `execution` outlives this object.
  HiddenProduct(const T* hidden, int64_t batch, int64_t width, const DenseExecution<T>& execution);

  Tasks Pack() const;

  // product [B, D] = H A^T, A [D, D].
  // Cost: 2 B D^2 FLOP.
  Tasks Transposed(const T* a, T* product) const;

  // Rows [begin, end) of A H^T.
  Product<T> RowsOf(const T* a, T* product) const {
    return {a, width_, 1, panels_, width_, batch_, product, batch_, 1, 0};
  }

 private:
  const T* const hidden_;
  const int64_t batch_, width_;
  const DenseExecution<T>& execution_;
  const int64_t rows_of_task_;
  T* const panels_;  // H^T
  T* const blocks_;  // of rows of A H^T, per worker
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_HIDDEN_PRODUCT_H_
