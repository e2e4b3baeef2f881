// SPDX-License-Identifier: Apache-2.0
//
// The parts of FactoredUpdate: what is common to both forms of the update, the form through [B, B]
// matrices and the one through [D, D] matrices, each in a source of its own.

#ifndef TFX_LARGEOUT_CORE_FACTORED_STEP_H_
#define TFX_LARGEOUT_CORE_FACTORED_STEP_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/factored_coordinates.h"
#include "core/factored_targets.h"
#include "core/factored_update.h"
#include "core/hidden_product.h"

namespace tfx::core {

// One step of FactoredUpdate. Names are those of docs/factored_head.md, with eta / beta in the
// place of eta, where beta = 1 - eta lambda: W' = beta (W - eta / beta dL/dW).
template <typename T>
class FactoredStep {
 public:
  FactoredStep(const FactoredState<T>& state, const FactoredBatch<T>& batch,
               const FactoredGradients<T>& gradients, const FactoredRates<T>& rates,
               const DenseExecution<T>& execution, T* hidden_gradient);

  // Sets the gradient alone.
  void Gradient();

  // Sets the gradient and takes the step.
  FactoredOutcome Update();

 private:
  // Rows of `vectors_`.
  enum { kHiddenGSum, kHiddenAlpha, kShiftStep, kRowSumStep, kNumVectors };

  T* Take(int64_t n) { return execution_.template Take<T>(n); }

  const T* Hidden(int64_t i) const { return batch_.hidden + i * width_; }

  T* BlockOf(int worker) const { return blocks_ + worker * block_size_; }

  // How many rows a task gets that uses BlockOf: as RowTasks has it, but never more than
  // block_rows_.
  int64_t RowsOf(double flop_of_row) const {
    return std::min(block_rows_, execution_.RowsOfTask(flop_of_row));
  }

  // In factored_step.cc.
  static Tasks BlockTasks(int64_t rows, int64_t block,
                          std::function<void(int64_t, int64_t, int)> run);
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
  void FadeInverse(T* row) const;
  void FinishGram(int64_t begin, int64_t end) const;
  void SetNorm(const T* matrix, int64_t row, T* norms) const;
  Factorization<T> NewFactorization(int64_t n);
  FactoredOutcome Finish();

  // In factored_through_examples.cc, for B <= D. Returns false, with the state unchanged and
  // everything done that ThroughWidth needs, if M is not safely positive definite.
  bool TryThroughExamples();
  Tasks ErrorProducts(T* products) const;
  Tasks SolvePHidden(const Factorization<T>& system) const;
  void PackColumns(const T* from, int64_t columns, T* panel) const;
  Tasks UpdateU() const;
  Tasks UpdateP() const;
  Tasks ResidualRows(const T* products, T* r) const;
  Tasks UpdateGram(const T* r) const;

  // In factored_through_width.cc, for B > D, or an M that can't be inverted safely.
  FactoredOutcome ThroughWidth();
  Tasks WeightedGram(T* k) const;
  Tasks FullProduct(const T* left, const T* right, T* product) const;
  Tasks TargetProductRows(T* z) const;
  bool FactorWidth(const T* k);
  Tasks HalfGram(const T* k, const T* j, T* half) const;
  Tasks UpdateUThroughWidth(const T* k) const;
  Tasks GramThroughWidth(const T* k, const T* half, const T* z) const;
  Tasks SolveP() const;
  Tasks DecayP() const;
  Tasks TargetsTimesU(T* moved);
  void MoveTargets(T* moved) const;

  const FactoredState<T>& state_;
  const FactoredBatch<T>& batch_;
  const FactoredGradients<T>& gradients_;
  const FactoredRates<T>& rates_;
  const DenseExecution<T>& execution_;
  const DenseKernels<T>& kernels_;
  const Workspace::Scope scope_;
  const FactoredTargets<T> targets_;
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
  T* blocks_;                        // a block of rows a worker
  int64_t block_rows_, block_size_;
  Factorization<T> m_;  // of M
  std::optional<NewAnchor<T>> new_anchor_;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_STEP_H_
