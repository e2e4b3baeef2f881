// SPDX-License-Identifier: Apache-2.0

#include "core/hidden_product.h"

namespace tfx::core {
namespace {

// For so few examples, inner products with the rows of A are quicker than a panel that is mostly
// empty.
constexpr int64_t kFewExamples = 4;

}  // namespace

template <typename T>
HiddenProduct<T>::HiddenProduct(const T* hidden, int64_t batch, int64_t width,
                                const DenseExecution<T>& execution)
    : hidden_(hidden),
      batch_(batch),
      width_(width),
      execution_(execution),
      rows_of_task_(execution.RowsOfTask(2.0 * width * batch)),
      panels_(execution.template Take<T>(execution.PanelsSize(width, batch))),
      blocks_(execution.template Take<T>(execution.num_workers * rows_of_task_ * batch)) {}

template <typename T>
Tasks HiddenProduct<T>::Pack() const {
  return {execution_.NumPanels(batch_), [this](int64_t panel, int) {
            execution_.kernels.pack_transposed(hidden_, width_, width_, batch_, panel, panel + 1,
                                               panels_);
          }};
}

template <typename T>
Tasks HiddenProduct<T>::Transposed(const T* a, T* product) const {
  const DenseKernels<T>& kernels = execution_.kernels;
  const auto inner_products = [=, &kernels](int64_t begin, int64_t end) {
    for (int64_t d = begin; d < end; ++d) {
      for (int64_t i = 0; i < batch_; ++i) {
        product[i * width_ + d] = kernels.dot(a + d * width_, hidden_ + i * width_, width_);
      }
    }
  };
  const auto of_panels = [=, &kernels](int64_t begin, int64_t end, int worker) {
    T* block = blocks_ + worker * rows_of_task_ * batch_;
    kernels.multiply(RowsOf(a + begin * width_, block), 0, end - begin, false);
    kernels.transpose(block, batch_, end - begin, batch_, product + begin, width_);
  };
  return execution_.RowTasks(width_, 2.0 * width_ * batch_,
                             [=](int64_t begin, int64_t end, int worker) {
                               if (batch_ <= kFewExamples) {
                                 inner_products(begin, end);
                               } else {
                                 of_panels(begin, end, worker);
                               }
                             });
}

template class HiddenProduct<float>;
template class HiddenProduct<double>;

}  // namespace tfx::core
