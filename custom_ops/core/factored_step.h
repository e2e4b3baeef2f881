// SPDX-License-Identifier: Apache-2.0
//
// The parts of FactoredUpdate: the common part of both forms of the update, the form with [B, B]
// matrices and the form with [D, D] matrices, each in a separate source file.

#ifndef TFX_LARGEOUT_CORE_FACTORED_STEP_H_
#define TFX_LARGEOUT_CORE_FACTORED_STEP_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/factored_coordinates.h"
#include "core/factored_update.h"
#include "core/hidden_product.h"
#include "core/merged_labels.h"

namespace tfx::core {

// One step of FactoredUpdate. Names are those of docs/papers/exact_gradient.md, with eta / beta
// instead of eta, where beta = 1 - eta lambda: W' = beta (W - eta / beta dL/dW).
template <typename T>
class FactoredStep {
 public:
  FactoredStep(const FactoredState<T>& state, const FactoredBatch<T>& batch,
               const FactoredGradients<T>& gradients, const FactoredRates<T>& rates,
               const DenseExecution<T>& execution, T* hidden_gradient);

  // Sets only the gradient.
  void Gradient();

  // Sets the gradient and takes the step.
  FactoredOutcome Update();

 private:
  // Rows of `vectors_`.
  enum { kHiddenGSum, kHiddenAlpha, kShiftStep, kRowSumStep, kNumVectors };

  T* Take(int64_t n) { return execution_.template Take<T>(n); }

  const T* Hidden(int64_t i) const { return batch_.hidden + i * width_; }

  T* BlockOf(int worker) const { return blocks_ + worker * block_size_; }

  // Tasks that use BlockOf: as RowTasks, with at most block_rows_ rows each.
  Tasks BlockTasks(int64_t rows, double flop_of_row,
                   std::function<void(int64_t begin, int64_t end, int worker)> run) const {
    return InBlocks(rows, std::min(block_rows_, execution_.RowsOfTask(flop_of_row)),
                    std::move(run));
  }

  // C = beta C + alpha A B and C = beta C + alpha A^T B for matrices by rows, B and C [.., D].
  Product<T> Plain(const T* a, int64_t depth, const T* b, T* c, T alpha = 1, T beta = 0) const {
    return {a, depth, 1, b, depth, width_, c, width_, alpha, beta, width_};
  }
  Product<T> OfTranspose(const T* a, const T* b, T* c, T alpha = 1, T beta = 0) const {
    return {a, 1, width_, b, size_, width_, c, width_, alpha, beta, width_};
  }

  // Calls visit(place of the class in targets_, g_a) for each label of example i.
  template <typename Visit>
  void ForEachLabel(int64_t i, const Visit& visit) const {
    for (int64_t at = i * batch_.num_labels; at < (i + 1) * batch_.num_labels; ++at) {
      if (targets_.places[at] >= 0) visit(targets_.places[at], gradients_.g_target[at]);
    }
  }

  // Calls visit(example, g_a) for each position of a target.
  template <typename Visit>
  void ForEachExample(int64_t target, const Visit& visit) const {
    for (int64_t j = targets_.offsets[target]; j < targets_.offsets[target + 1]; ++j) {
      const int64_t at = targets_.positions[j];
      visit(at / batch_.num_labels, gradients_.g_target[at]);
    }
  }

  // In factored_step.cc.
  void Mirror(int64_t begin, int64_t end, T* matrix) const;
  Tasks GradientRows() const;
  void FinishGradient(int64_t i) const;
  void PrepareUpdate();
  Phase Prepare() const;
  void SetCoefficients(int64_t i) const;
  Tasks Vectors() const;
  Tasks MergeRows() const;
  void AddTargetProducts(int64_t i, T* row) const;
  Tasks PHidden() const { return products_.Transposed(state_.u_inverse_transpose, p_hidden_); }
  Tasks UpdateRows() const;
  void SetSlots(int32_t slot) const;
  Tasks UpdateVectors() const;
  void Fade(T share, int64_t n, T* x) const;
  void FinishU(int64_t begin, int64_t end) const;
  void FinishP(int64_t begin, int64_t end) const;
  void FinishGram(int64_t begin, int64_t end) const;
  Factorization<T> NewFactorization(int64_t n);
  FactoredOutcome Finish();

  // In factored_through_examples.cc, for B <= D. If M is not safely positive definite, returns
  // false without changing the state, and after everything that ThroughWidth needs.
  bool TryThroughExamples();
  Tasks ErrorProducts(T* products) const;
  Tasks SolvePHidden(const Factorization<T>& system) const;
  Tasks UpdateU() const;
  Tasks UpdateP() const;
  Tasks ResidualRows(const T* products, T* r) const;
  Tasks UpdateGram(const T* r) const;

  // In factored_through_width.cc, for B > D, or an M that can't be inverted safely.
  FactoredOutcome ThroughWidth();
  Tasks WeightedGram(T* k) const;
  Tasks TargetProductRows(T* z) const;
  bool FactorWidth(const T* k);
  Tasks HalfGram(const T* k, const T* j, T* half) const;
  Tasks UpdateUThroughWidth(const T* k) const;
  Tasks GramThroughWidth(const T* k, const T* half, const T* z) const;
  Tasks SolveP() const;
  Tasks TargetsTimesU(T* moved);
  void MoveTargets(T* moved) const;

  const FactoredState<T>& state_;
  const FactoredBatch<T>& batch_;
  const FactoredGradients<T>& gradients_;
  const FactoredRates<T>& rates_;
  const DenseExecution<T>& execution_;
  const DenseKernels<T>& kernels_;
  const Workspace::Scope scope_;
  const MergedLabels targets_;
  const CurrentRows<T> rows_;   // of the targets
  const int64_t size_, width_;  // B, D
  const T decay_, eta_;         // eta lambda, and eta / beta

  const HiddenProduct<T> products_;  // with the transposes of matrices
  T* const error_;                   // E [B, D]
  T* target_sums_;                   // [B, D]: the sum of g_a V[y] over the labels of an example
  T* y_;                             // Y [B, D]
  T* alpha_;                         // [B]
  T* scale_;                         // [B]: 2 eta g_q
  T* scaled_hidden_;                 // 2 eta G H [B, D]
  T *coefficients_, *vectors_;       // [kNumVectors, B] and [kNumVectors, D]
  T* merged_;                        // x_u [targets, D]
  T* p_hidden_;                      // H P^T, then H P'^T, [B, D]
  T* norms_;                         // [2, D]: squares of the rows of U' and P'
  T* blocks_;                        // a block of rows per worker
  int64_t block_rows_, block_size_;
  Factorization<T> m_;  // of M
  std::optional<NewAnchor<T>> new_anchor_;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_STEP_H_
