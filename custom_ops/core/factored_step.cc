// SPDX-License-Identifier: Apache-2.0

#include "core/factored_step.h"

#include <cmath>
#include <cstring>

namespace tfx::core {

template <typename T>
FactoredStep<T>::FactoredStep(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                              const FactoredGradients<T>& gradients, const FactoredRates<T>& rates,
                              const DenseExecution<T>& execution, T* hidden_gradient)
    : state_(state),
      batch_(batch),
      gradients_(gradients),
      rates_(rates),
      execution_(execution),
      kernels_(execution.kernels),
      scope_(execution.workspace),
      targets_(batch.labels, batch.batch, batch.num_labels),
      rows_(state, targets_.classes, execution),
      size_(batch.batch),
      width_(state.width),
      decay_(rates.learning_rate * rates.weight_decay),
      eta_(rates.learning_rate / (1 - decay_)),
      products_(batch.hidden, batch.batch, state.width, execution),
      error_(hidden_gradient) {
  rows_.Run();
  target_sums_ = Take(size_ * width_);
  y_ = Take(size_ * width_);
  alpha_ = Take(size_);
  for (int64_t i = 0; i < size_; ++i) {
    alpha_[i] = 0;
    ForEachLabel(i, [&](int64_t, T g) { alpha_[i] += g; });
  }
}

template <typename T>
void FactoredStep<T>::Gradient() {
  execution_.Run({{"gradient: Y, E", {GradientRows()}}});
}

template <typename T>
FactoredOutcome FactoredStep<T>::Update() {
  PrepareUpdate();
  if (size_ <= width_) {
    if (TryThroughExamples()) return Finish();
  } else {
    Gradient();
    execution_.Run({Prepare(), {"update: x", {Vectors(), MergeRows()}}});
  }
  return ThroughWidth();
}

// Copies the part left of the diagonal in rows [begin, end) of a matrix [D, D] above it. Meanwhile
// nothing may write above the diagonal in these rows, except in columns [begin, end).
template <typename T>
void FactoredStep<T>::Mirror(int64_t begin, int64_t end, T* matrix) const {
  const int64_t n = width_;
  kernels_.transpose(matrix + begin * n, n, end - begin, begin, matrix + begin, n);
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = begin; j < i; ++j) matrix[j * n + i] = matrix[i * n + j];
  }
}

// ---- The gradient: Y = Abar^T W, E = 2 G H Q + Y.

template <typename T>
Tasks FactoredStep<T>::GradientRows() const {
  return execution_.RowTasks(size_, 2.0 * width_ * width_, [=](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      T* sum = target_sums_ + i * width_;
      std::fill(sum, sum + width_, T{0});
      ForEachLabel(i, [&](int64_t place, T g) { kernels_.add(g, rows_[place], width_, sum); });
    }
    kernels_.multiply(Plain(target_sums_, width_, state_.u, y_), begin, end, false);
    for (int64_t i = begin; i < end; ++i) FinishGradient(i);
  });
}

template <typename T>
void FactoredStep<T>::FinishGradient(int64_t i) const {
  T *y = y_ + i * width_, *error = error_ + i * width_;
  kernels_.add(alpha_[i], state_.shift, width_, y);
  kernels_.add(gradients_.g_sum[i], state_.row_sum, width_, y);
  std::memcpy(error, y, width_ * sizeof(T));
  kernels_.add(2 * gradients_.g_squares[i], gradients_.gram_hidden + i * width_, width_, error);
}

// ---- Parts of both forms of the update.

template <typename T>
void FactoredStep<T>::PrepareUpdate() {
  scale_ = Take(size_);
  for (int64_t i = 0; i < size_; ++i) scale_[i] = 2 * eta_ * gradients_.g_squares[i];
  scaled_hidden_ = Take(size_ * width_);
  coefficients_ = Take(kNumVectors * size_);
  vectors_ = Take(kNumVectors * width_);
  merged_ = Take(targets_.size() * width_);
  p_hidden_ = Take(size_ * width_);
  norms_ = Take(2 * width_);
  const double flop_of_row = 2.0 * std::max(width_, size_) * std::max(width_, size_);
  block_rows_ = std::max(execution_.RowsOfTask(flop_of_row),
                         execution_.RowsOfTask(2.0 * width_ * std::min(width_, size_)));
  block_size_ = std::max(block_rows_ * std::max(width_, size_),
                         kernels_.panel_width * std::max(width_, size_));
  blocks_ = Take(execution_.num_workers * block_size_);
  new_anchor_.emplace(state_, execution_);
}

template <typename T>
Phase FactoredStep<T>::Prepare() const {
  const auto prepare = [=](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      SetCoefficients(i);
      T* scaled = scaled_hidden_ + i * width_;
      for (int64_t d = 0; d < width_; ++d) scaled[d] = scale_[i] * Hidden(i)[d];
    }
  };
  return {"update: pack H", {products_.Pack(), execution_.RowTasks(size_, 32.0 * width_, prepare)}};
}

template <typename T>
void FactoredStep<T>::SetCoefficients(int64_t i) const {
  const T g_sum = gradients_.g_sum[i];
  const T shift = kernels_.dot(Hidden(i), state_.shift, width_);
  const T row_sum = kernels_.dot(Hidden(i), state_.row_sum, width_);
  coefficients_[kHiddenGSum * size_ + i] = g_sum;
  coefficients_[kHiddenAlpha * size_ + i] = alpha_[i];
  coefficients_[kShiftStep * size_ + i] = scale_[i] * shift + eta_ * g_sum;
  coefficients_[kRowSumStep * size_ + i] =
      scale_[i] * row_sum + eta_ * (alpha_[i] + state_.num_classes * g_sum);
}

// vectors_ = coefficients_ H.
template <typename T>
Tasks FactoredStep<T>::Vectors() const {
  return {1, [=](int64_t, int) {
            kernels_.multiply(Plain(coefficients_, size_, batch_.hidden, vectors_), 0, kNumVectors,
                              false);
          }};
}

// x_u = sum of g_a h over the places of target u.
template <typename T>
Tasks FactoredStep<T>::MergeRows() const {
  return execution_.RowTasks(targets_.size(), 16.0 * width_, [=](int64_t begin, int64_t end, int) {
    for (int64_t target = begin; target < end; ++target) {
      T* row = merged_ + target * width_;
      std::fill(row, row + width_, T{0});
      ForEachExample(target, [&](int64_t i, T g) { kernels_.add(g, Hidden(i), width_, row); });
    }
  });
}

// row += the row of Abar^T Abar H for example i.
template <typename T>
void FactoredStep<T>::AddTargetProducts(int64_t i, T* row) const {
  const T g_sum = gradients_.g_sum[i];
  ForEachLabel(i,
               [&](int64_t place, T g) { kernels_.add(g, merged_ + place * width_, width_, row); });
  const T of_sum = alpha_[i] + state_.num_classes * g_sum;
  kernels_.add(of_sum, vectors_ + kHiddenGSum * width_, width_, row);
  kernels_.add(g_sum, vectors_ + kHiddenAlpha * width_, width_, row);
}

// V[u] -= eta P' x_u, where p_hidden_ holds H P'^T for the P' of the step without decay.
template <typename T>
Tasks FactoredStep<T>::UpdateRows() const {
  return execution_.RowTasks(targets_.size(), 32.0 * width_, [=](int64_t begin, int64_t end, int) {
    for (int64_t target = begin; target < end; ++target) {
      T* row = state_.Row(targets_.classes[target]);
      const T* current = rows_[target];
      if (current != row) std::memcpy(row, current, width_ * sizeof(T));
      ForEachExample(target, [&](int64_t i, T g) {
        kernels_.add(-eta_ * g, p_hidden_ + i * width_, width_, row);
      });
    }
  });
}

template <typename T>
void FactoredStep<T>::SetSlots(int32_t slot) const {
  for (int64_t id : targets_.classes) MoveToSlot(state_, id, slot);
}

// w' = beta (M w - eta H^T g_s), c' = beta (M c - eta H^T (alpha + C g_s)).
template <typename T>
Tasks FactoredStep<T>::UpdateVectors() const {
  return {1, [=](int64_t, int) {
            for (int64_t d = 0; d < width_; ++d) {
              state_.shift[d] -= vectors_[kShiftStep * width_ + d];
              state_.row_sum[d] -= vectors_[kRowSumStep * width_ + d];
            }
            Fade(decay_, width_, state_.shift);
            Fade(decay_, width_, state_.row_sum);
          }};
}

// n numbers times 1 - share. As a factor, 1 - share would have an error of up to 3e-8 in float,
// which is a percent of a share of 3e-6, the same in every step.
template <typename T>
void FactoredStep<T>::Fade(T share, int64_t n, T* x) const {
  if (share != 0) kernels_.add(-share, x, n, x);
}

// Rows [begin, end) of U', and likewise of P' with 1 / beta = 1 + eta lambda / beta.
template <typename T>
void FactoredStep<T>::FinishU(int64_t begin, int64_t end) const {
  for (int64_t d = begin; d < end; ++d) {
    T* row = state_.u + d * width_;
    Fade(decay_, width_, row);
    norms_[d] = kernels_.dot(row, row, width_);
  }
}

template <typename T>
void FactoredStep<T>::FinishP(int64_t begin, int64_t end) const {
  for (int64_t d = begin; d < end; ++d) {
    T* row = state_.u_inverse_transpose + d * width_;
    Fade(-decay_ / (1 - decay_), width_, row);
    norms_[width_ + d] = kernels_.dot(row, row, width_);
  }
}

// Rows [begin, end) of Q, given its lower triangle: multiplied by beta^2 = 1 - eta lambda (2 - eta
// lambda), then copied above the diagonal.
template <typename T>
void FactoredStep<T>::FinishGram(int64_t begin, int64_t end) const {
  for (int64_t d = begin; d < end; ++d) {
    Fade(decay_ * (2 - decay_), d + 1, state_.gram + d * width_);
  }
  Mirror(begin, end, state_.gram);
}

template <typename T>
Factorization<T> FactoredStep<T>::NewFactorization(int64_t n) {
  Factorization<T> f;
  f.size = n;
  f.min_pivot = static_cast<T>(kLeastPivot);
  f.max_pivot = static_cast<T>(kMostPivot);
  f.pivots = Take(n);
  f.lower = Take(n * n);
  f.upper = Take(n * n);
  f.scratch = Take(kernels_.factor_scratch(n));
  return f;
}

template <typename T>
FactoredOutcome FactoredStep<T>::Finish() {
  SetSlots(*state_.current_slot);
  double u_square = 0, p_square = 0;
  for (int64_t d = 0; d < width_; ++d) {
    u_square += norms_[d];
    p_square += norms_[width_ + d];
  }
  const double scale = std::sqrt(u_square / width_);
  const double condition = std::sqrt(u_square) * std::sqrt(p_square) / width_;
  const bool well =
      condition <= rates_.max_condition && scale <= kMostScale && scale >= 1 / kMostScale;
  if (!well && std::isfinite(rates_.max_condition)) new_anchor_->Start();
  return {false, 0};
}

template <typename T>
FactoredOutcome FactoredUpdate(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                               const FactoredGradients<T>& gradients, const FactoredRates<T>& rates,
                               bool update, const DenseExecution<T>& execution,
                               T* hidden_gradient) {
  FactoredStep<T> step(state, batch, gradients, rates, execution, hidden_gradient);
  if (update) return step.Update();
  step.Gradient();
  return {false, 0};
}

#define TFX_INSTANTIATE(T)                                                                      \
  template class FactoredStep<T>;                                                               \
  template FactoredOutcome FactoredUpdate(const FactoredState<T>&, const FactoredBatch<T>&,     \
                                          const FactoredGradients<T>&, const FactoredRates<T>&, \
                                          bool, const DenseExecution<T>&, T*)
TFX_INSTANTIATE(float);
TFX_INSTANTIATE(double);
#undef TFX_INSTANTIATE

}  // namespace tfx::core
