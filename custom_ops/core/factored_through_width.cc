// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <utility>
#include <vector>

#include "core/factored_step.h"
#include "core/largest_eigenvalue.h"

namespace tfx::core {

template <typename T>
FactoredOutcome FactoredStep<T>::ThroughWidth() {
  const int64_t square = width_ * width_;
  T* k = Take(square);          // I - M = 2 eta H^T G H
  T* j = Take(square);          // Y^T H
  T* z = Take(size_ * width_);  // Abar^T Abar H
  T* half = Take(square);       // F = Q M / 2 - eta Y^T H: Q' = M F + F^T M + eta^2 H^T Z
  execution_.Run({{"width: H^T G H, Y^T H",
                   {WeightedGram(k), execution_.Multiply(width_, OfTranspose(y_, batch_.hidden, j)),
                    TargetProductRows(z)}}});
  const bool is_safe = size_ > width_ && FactorWidth(k);
  if (!is_safe) {
    const double bound = (1 - decay_) * LargestEigenvalue(k, width_);
    if (!(bound <= 2 - decay_)) return {true, bound / (2 * rates_.learning_rate)};
  }
  // All memory is taken before the state changes.
  T* moved = is_safe ? nullptr : Take(targets_.size() * width_);
  std::vector<Phase> phases = {{"width: F, U", {HalfGram(k, j, half), UpdateUThroughWidth(k)}},
                               {"width: Q", {GramThroughWidth(k, half, z), UpdateVectors()}}};
  if (is_safe) {
    phases.push_back({"width: P", {SolveP()}});
    phases.push_back({"width: P H^T", {PHidden()}});
    const auto finish = [this](int64_t begin, int64_t end, int) { FinishP(begin, end); };
    phases.push_back(
        {"width: V", {UpdateRows(), execution_.RowTasks(width_, 8.0 * width_, finish)}});
  } else {
    phases.push_back({"new anchor: V U", {TargetsTimesU(moved)}});
  }
  execution_.Run(std::move(phases));
  if (is_safe) return Finish();
  new_anchor_->Start();
  MoveTargets(moved);
  return {false, 0};
}

// K = 2 eta H^T G H.
template <typename T>
Tasks FactoredStep<T>::WeightedGram(T* k) const {
  const Product<T> product = OfTranspose(batch_.hidden, scaled_hidden_, k);
  return execution_.RowTasks(width_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int) {
    kernels_.multiply(product, begin, end, true);
    Mirror(begin, end, k);
  });
}

template <typename T>
Tasks FactoredStep<T>::TargetProductRows(T* z) const {
  return execution_.RowTasks(size_, 16.0 * width_, [=](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = z + i * width_;
      std::fill(row, row + width_, T{0});
      AddTargetProducts(i, row);
    }
  });
}

template <typename T>
bool FactoredStep<T>::FactorWidth(const T* k) {
  m_ = NewFactorization(width_);
  m_.k = Take(width_ * width_);
  std::memcpy(m_.k, k, width_ * width_ * sizeof(T));
  T* ones = Take(width_);
  std::fill(ones, ones + width_, T{1});
  m_.s = ones;
  return kernels_.factor(m_);
}

template <typename T>
Tasks FactoredStep<T>::HalfGram(const T* k, const T* j, T* half) const {
  const Product<T> p = Plain(state_.gram, width_, k, half, T{-0.5});
  return execution_.RowTasks(width_, 2.0 * width_ * width_, [=](int64_t begin, int64_t end, int) {
    kernels_.multiply(p, begin, end, false);
    for (int64_t at = begin * width_; at < end * width_; ++at) {
      half[at] += state_.gram[at] / 2 - eta_ * j[at];
    }
  });
}

template <typename T>
Tasks FactoredStep<T>::UpdateUThroughWidth(const T* k) const {
  return BlockTasks(width_, 2.0 * width_ * width_, [=](int64_t begin, int64_t end, int worker) {
    T *rows = BlockOf(worker), *u = state_.u + begin * width_;
    std::memcpy(rows, u, (end - begin) * width_ * sizeof(T));
    kernels_.multiply(Plain(rows, width_, k, u, -1, 1), 0, end - begin, false);
    FinishU(begin, end);
  });
}

// Q' = beta^2 (F + F^T - (K F + F^T K) + eta^2 H^T Z) with K = I - M.
template <typename T>
Tasks FactoredStep<T>::GramThroughWidth(const T* k, const T* half, const T* z) const {
  const Product<T> left = Plain(k, width_, half, state_.gram, -1, 1);
  const Product<T> right = {half, 1, width_, k, width_, width_, state_.gram, width_, -1, 1, width_};
  const Product<T> targets = OfTranspose(batch_.hidden, z, state_.gram, eta_ * eta_, 1);
  return execution_.RowTasks(width_, 4.0 * width_ * width_, [=](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t d = 0; d <= i; ++d) {
        state_.gram[i * width_ + d] = half[i * width_ + d] + half[d * width_ + i];
      }
    }
    kernels_.multiply(left, begin, end, true);
    kernels_.multiply(right, begin, end, true);
    kernels_.multiply(targets, begin, end, true);
    FinishGram(begin, end);
  });
}

// P' = P M^-1, a panel of rows at a time: M is symmetric.
template <typename T>
Tasks FactoredStep<T>::SolveP() const {
  return {execution_.NumPanels(width_), [=](int64_t panel, int worker) {
            const int64_t first = panel * kernels_.panel_width;
            const int64_t rows = std::min(kernels_.panel_width, width_ - first);
            T *block = BlockOf(worker), *p = state_.u_inverse_transpose + first * width_;
            kernels_.pack_transposed(p, width_, width_, rows, 0, 1, block);
            kernels_.solve(m_, block);
            kernels_.transpose(block, kernels_.panel_width, width_, rows, p, width_);
          }};
}

// V[u] U', with U' in place.
template <typename T>
Tasks FactoredStep<T>::TargetsTimesU(T* moved) {
  const int64_t n = targets_.size();
  T* rows = Take(n * width_);
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(rows + i * width_, rows_[i], width_ * sizeof(T));
  }
  return execution_.Multiply(n, Plain(rows, width_, state_.u, moved));
}

// The target rows become V[u] U' - eta x_u in the coordinates of a new anchor, which needs no P'.
template <typename T>
void FactoredStep<T>::MoveTargets(T* moved) const {
  for (int64_t i = 0; i < targets_.size(); ++i) {
    T* row = moved + i * width_;
    kernels_.add(-rates_.learning_rate, merged_ + i * width_, width_, row);
    std::memcpy(state_.Row(targets_.classes[i]), row, width_ * sizeof(T));
  }
  SetSlots(*state_.current_slot);
}

template FactoredOutcome FactoredStep<float>::ThroughWidth();
template FactoredOutcome FactoredStep<double>::ThroughWidth();

}  // namespace tfx::core
