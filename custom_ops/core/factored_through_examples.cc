// SPDX-License-Identifier: Apache-2.0

#include <cstring>

#include "core/factored_step.h"

namespace tfx::core {

template <typename T>
bool FactoredStep<T>::TryThroughExamples() {
  Factorization<T> system = NewFactorization(size_);
  system.k = Take(size_ * size_);
  system.s = scale_;
  bool is_safe = false;
  Tasks factor = {1, [&](int64_t, int) {
                    kernels_.multiply(products_.RowsOf(batch_.hidden, system.k), 0, size_, true);
                    is_safe = kernels_.factor(system);
                  }};
  execution_.Run({Prepare(),
                  {"update: factor, Y, E, P H^T",
                   {factor, GradientRows(), PHidden(), Vectors(), MergeRows()}}});
  if (!is_safe) return false;

  T* products = Take(size_ * size_);  // (E + Y) H^T
  T* r = Take(size_ * width_);        // R^T = E - eta / 2 T H
  execution_.Run(
      {{"update: T, solve, U", {ErrorProducts(products), SolvePHidden(system), UpdateU()}},
       {"update: R, P, V", {ResidualRows(products, r), UpdateP(), UpdateRows()}},
       {"update: Q", {UpdateGram(r), UpdateVectors()}}});
  return true;
}

template <typename T>
Tasks FactoredStep<T>::ErrorProducts(T* products) const {
  return BlockTasks(size_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int worker) {
    T* sums = BlockOf(worker);
    for (int64_t at = begin * width_; at < end * width_; ++at) {
      sums[at - begin * width_] = error_[at] + y_[at];
    }
    kernels_.multiply(products_.RowsOf(sums, products + begin * size_), 0, end - begin, false);
  });
}

// H P'^T = (I - 2 eta K G)^-1 H P^T, a panel of columns at a time.
template <typename T>
Tasks FactoredStep<T>::SolvePHidden(const Factorization<T>& system) const {
  return {execution_.NumPanels(width_), [=](int64_t panel, int worker) {
            const int64_t first = panel * kernels_.panel_width;
            const int64_t columns = std::min(kernels_.panel_width, width_ - first);
            T *block = BlockOf(worker), *from = p_hidden_ + first;
            // One panel of a matrix that has its rows width_ apart.
            kernels_.pack(from, width_, size_, columns, 0, size_, block);
            kernels_.solve(system, block);
            for (int64_t i = 0; i < size_; ++i) {
              std::memcpy(from + i * width_, block + i * kernels_.panel_width, columns * sizeof(T));
            }
          }};
}

// U' = beta (U - 2 eta (U H^T) G H).
template <typename T>
Tasks FactoredStep<T>::UpdateU() const {
  const Product<T> product = OfTranspose(gradients_.u_hidden, scaled_hidden_, state_.u, -1, 1);
  return execution_.RowTasks(width_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int) {
    kernels_.multiply(product, begin, end, false);
    FinishU(begin, end);
  });
}

// P' = (P + 2 eta (P' H^T) G H) / beta, with the P' without decay on the right.
template <typename T>
Tasks FactoredStep<T>::UpdateP() const {
  const Product<T> product =
      OfTranspose(p_hidden_, scaled_hidden_, state_.u_inverse_transpose, 1, 1);
  return execution_.RowTasks(width_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int) {
    kernels_.multiply(product, begin, end, false);
    FinishP(begin, end);
  });
}

// Rows of R^T = E - eta / 2 T H, where T = X + X^T + Abar^T Abar, X = (E + Y) H^T G.
template <typename T>
Tasks FactoredStep<T>::ResidualRows(const T* products, T* r) const {
  return BlockTasks(size_, 2.0 * size_ * width_, [=](int64_t begin, int64_t end, int worker) {
    T* t = BlockOf(worker);
    kernels_.transpose(products + begin, size_, size_, end - begin, t, size_);
    for (int64_t i = begin; i < end; ++i) {
      T* row = t + (i - begin) * size_;
      for (int64_t j = 0; j < size_; ++j) {
        row[j] =
            row[j] * gradients_.g_squares[i] + products[i * size_ + j] * gradients_.g_squares[j];
      }
    }
    kernels_.multiply(Plain(t, size_, batch_.hidden, r + begin * width_), 0, end - begin, false);
    for (int64_t i = begin; i < end; ++i) {
      T* row = r + i * width_;
      AddTargetProducts(i, row);
      for (int64_t d = 0; d < width_; ++d) {
        row[d] = error_[i * width_ + d] - eta_ / 2 * row[d];
      }
    }
  });
}

// Q' = beta^2 (Q - eta (R H + H^T R^T)).
template <typename T>
Tasks FactoredStep<T>::UpdateGram(const T* r) const {
  const Product<T> left = OfTranspose(batch_.hidden, r, state_.gram, -eta_, 1);
  const Product<T> right = OfTranspose(r, batch_.hidden, state_.gram, -eta_, 1);
  return execution_.RowTasks(width_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int) {
    kernels_.multiply(left, begin, end, true);
    kernels_.multiply(right, begin, end, true);
    FinishGram(begin, end);
  });
}

template bool FactoredStep<float>::TryThroughExamples();
template bool FactoredStep<double>::TryThroughExamples();

}  // namespace tfx::core
