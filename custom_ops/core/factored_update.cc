// SPDX-License-Identifier: Apache-2.0

#include "core/factored_update.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/factored_coordinates.h"
#include "core/largest_eigenvalue.h"
#include "core/merged_labels.h"

namespace tfx::core {
namespace {

// Pivots of M's factorization within these bounds: P M^-1 loses few digits.
constexpr double kMinPivot = 0.1;
constexpr double kMaxPivot = 10;

// |U| / sqrt(D) within these bounds: no overflow lurks. Weight decay shrinks U step by step.
constexpr double kMaxScale = 64;

// Rows of `vectors_`.
enum Vectors { kHiddenGSum, kHiddenAlpha, kShiftStep, kRowSumStep, kNumVectors };

// One step. Names are those of docs/factored_head.md, with eta / beta in the place of eta, where
// beta = 1 - eta lambda: W' = beta (W - eta / beta dL/dW).
template <typename T>
class Step {
 public:
  Step(const FactoredState<T>& state, const FactoredBatch<T>& batch,
       const FactoredGradients<T>& gradients, const FactoredRates<T>& rates,
       const FactoredResources<T>& resources, T* hidden_gradient)
      : state_(state),
        batch_(batch),
        gradients_(gradients),
        rates_(rates),
        resources_(resources),
        kernels_(resources.kernels),
        scope_(resources.workspace),
        targets_(batch.labels, batch.batch, batch.num_labels),
        rows_(CurrentRows(state, targets_.classes, resources)),
        size_(batch.batch),
        width_(state.width),
        beta_(1 - rates.learning_rate * rates.weight_decay),
        eta_(rates.learning_rate / beta_),
        error_(hidden_gradient) {
    target_sums_ = Take(size_ * width_);
    y_ = Take(size_ * width_);
    u_panels_ = TakePanels(width_, width_);
    alpha_ = Take(size_);
    for (int64_t i = 0; i < size_; ++i) {
      alpha_[i] = 0;
      ForEachLabel(i, [&](int64_t, T g) { alpha_[i] += g; });
    }
  }

  void Gradient() {
    resources_.Run({{"gradient: pack U, sum V[y]",
                     {PackRows(state_.u, width_, width_, nullptr, u_panels_), SumTargets()}},
                    {"gradient: Y, E", {GradientRows()}}});
  }

  FactoredOutcome Update() {
    PrepareUpdate();
    if (size_ <= width_) {
      if (TryThroughExamples()) return Finish();
    } else {
      Gradient();
      resources_.Run({PackHidden(), {"update: x", {Vectors(), MergeRows()}}});
    }
    return ThroughWidth();
  }

 private:
  T* Take(int64_t n) { return resources_.workspace.template Take<T>(n); }
  T* TakePanels(int64_t depth, int64_t columns) {
    return Take(resources_.PanelsSize(depth, columns));
  }

  // Calls visit(place in targets_, g_a) for each label of example i.
  template <typename Visit>
  void ForEachLabel(int64_t i, const Visit& visit) const {
    for (int64_t at = i * batch_.num_labels; at < (i + 1) * batch_.num_labels; ++at) {
      if (targets_.places[at] >= 0) visit(targets_.places[at], gradients_.g_target[at]);
    }
  }

  // Calls visit(example, g_a) for each place where a target stands.
  template <typename Visit>
  void ForEachExample(int64_t target, const Visit& visit) const {
    for (int64_t j = targets_.offsets[target]; j < targets_.offsets[target + 1]; ++j) {
      const int64_t at = targets_.positions[j];
      visit(at / batch_.num_labels, gradients_.g_target[at]);
    }
  }

  const T* Hidden(int64_t i) const { return batch_.hidden + i * width_; }

  Tasks PackRows(const T* matrix, int64_t depth, int64_t columns, const T* scale, T* panels) const {
    return resources_.RowTasks(depth, 16.0 * columns, [=](int64_t begin, int64_t end, int) {
      kernels_.pack(matrix, columns, depth, columns, scale, begin, end, panels);
    });
  }

  // ---- The gradient: Y = Abar^T W, E = 2 G H Q + Y.

  Tasks SumTargets() const {
    return resources_.RowTasks(size_, 8.0 * width_ * (1 + batch_.num_labels),
                               [=](int64_t begin, int64_t end, int) {
                                 for (int64_t i = begin; i < end; ++i) SumTargets(i);
                               });
  }

  void SumTargets(int64_t i) const {
    T* sum = target_sums_ + i * width_;
    std::fill(sum, sum + width_, T{0});
    ForEachLabel(i, [&](int64_t place, T g) { kernels_.add(g, rows_[place], width_, sum); });
  }

  Tasks GradientRows() const {
    const Product<T> product = {target_sums_, width_, 1,      u_panels_, width_,
                                width_,       y_,     width_, 1,         0};
    return resources_.RowTasks(size_, 2.0 * width_ * width_, [=](int64_t begin, int64_t end, int) {
      kernels_.multiply(product, begin, end, false);
      for (int64_t i = begin; i < end; ++i) FinishGradient(i);
    });
  }

  void FinishGradient(int64_t i) const {
    T *y = y_ + i * width_, *error = error_ + i * width_;
    kernels_.add(alpha_[i], state_.w, width_, y);
    kernels_.add(gradients_.g_sum[i], state_.c, width_, y);
    std::memcpy(error, y, width_ * sizeof(T));
    kernels_.add(2 * gradients_.g_squares[i], gradients_.gram_hidden + i * width_, width_, error);
  }

  // ---- What both forms of the update need.

  void PrepareUpdate() {
    scale_ = Take(size_);
    for (int64_t i = 0; i < size_; ++i) scale_[i] = 2 * eta_ * gradients_.g_squares[i];
    hidden_transposed_panels_ = TakePanels(width_, size_);
    hidden_panels_ = TakePanels(size_, width_);
    scaled_hidden_panels_ = TakePanels(size_, width_);
    coefficients_ = Take(kNumVectors * size_);
    vectors_ = Take(kNumVectors * width_);
    merged_ = Take(targets_.size() * width_);
    p_hidden_ = Take(size_ * width_);
    norms_ = Take(2 * width_);
    const double flop_of_row = 2.0 * std::max(width_, size_) * std::max(width_, size_);
    block_rows_ = std::max(resources_.RowsOfTask(flop_of_row),
                           resources_.RowsOfTask(2.0 * width_ * std::min(width_, size_)));
    block_size_ = std::max(block_rows_ * std::max(width_, size_),
                           kernels_.panel_width * std::max(width_, size_));
    blocks_ = Take(resources_.num_workers * block_size_);
  }

  T* BlockOf(int worker) const { return blocks_ + worker * block_size_; }

  Phase PackHidden() const {
    const Tasks transposed = {resources_.NumPanels(size_), [=](int64_t panel, int) {
                                kernels_.pack_transposed(batch_.hidden, width_, width_, size_,
                                                         nullptr, panel, panel + 1,
                                                         hidden_transposed_panels_);
                              }};
    const Tasks coefficients =
        resources_.RowTasks(size_, 32.0 * width_, [=](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) SetCoefficients(i);
        });
    return {"update: pack",
            {transposed, PackRows(batch_.hidden, size_, width_, nullptr, hidden_panels_),
             PackRows(batch_.hidden, size_, width_, scale_, scaled_hidden_panels_), coefficients}};
  }

  void SetCoefficients(int64_t i) const {
    const T g_sum = gradients_.g_sum[i];
    const T shift = kernels_.dot(Hidden(i), state_.w, width_);
    const T row_sum = kernels_.dot(Hidden(i), state_.c, width_);
    coefficients_[kHiddenGSum * size_ + i] = g_sum;
    coefficients_[kHiddenAlpha * size_ + i] = alpha_[i];
    coefficients_[kShiftStep * size_ + i] = scale_[i] * shift + eta_ * g_sum;
    coefficients_[kRowSumStep * size_ + i] =
        scale_[i] * row_sum + eta_ * (alpha_[i] + state_.num_classes * g_sum);
  }

  // vectors_ = coefficients_ H.
  Tasks Vectors() const {
    return {1, [=](int64_t, int) {
              kernels_.multiply(
                  {coefficients_, size_, 1, hidden_panels_, size_, width_, vectors_, width_, 1, 0},
                  0, kNumVectors, false);
            }};
  }

  // x_u = sum of g_a h over the places where target u stands.
  Tasks MergeRows() const {
    return resources_.RowTasks(
        targets_.size(), 16.0 * width_, [=](int64_t begin, int64_t end, int) {
          for (int64_t target = begin; target < end; ++target) {
            T* row = merged_ + target * width_;
            std::fill(row, row + width_, T{0});
            ForEachExample(target,
                           [&](int64_t i, T g) { kernels_.add(g, Hidden(i), width_, row); });
          }
        });
  }

  // row += the row of Abar^T Abar H for example i.
  void AddTargetProducts(int64_t i, T* row) const {
    const T g_sum = gradients_.g_sum[i];
    ForEachLabel(
        i, [&](int64_t place, T g) { kernels_.add(g, merged_ + place * width_, width_, row); });
    const T of_sum = alpha_[i] + state_.num_classes * g_sum;
    kernels_.add(of_sum, vectors_ + kHiddenGSum * width_, width_, row);
    kernels_.add(g_sum, vectors_ + kHiddenAlpha * width_, width_, row);
  }

  // A block of rows of P H^T, or P' H^T, goes to p_hidden_ as H P^T.
  Tasks PHidden() const {
    const int64_t rows = RowsOf(2.0 * width_ * size_);
    return BlockTasks(width_, rows, [=](int64_t begin, int64_t end, int worker) {
      T* block = BlockOf(worker);
      kernels_.multiply({state_.p + begin * width_, width_, 1, hidden_transposed_panels_, width_,
                         size_, block, size_, 1, 0},
                        0, end - begin, false);
      kernels_.transpose(block, size_, end - begin, size_, p_hidden_ + begin, width_);
    });
  }

  // As RowTasks, for tasks that use BlockOf: never more than block_rows_ rows.
  int64_t RowsOf(double flop_of_row) const {
    return std::min(block_rows_, resources_.RowsOfTask(flop_of_row));
  }

  static Tasks BlockTasks(int64_t rows, int64_t block,
                          std::function<void(int64_t, int64_t, int)> run) {
    return {(rows + block - 1) / block, [=](int64_t task, int worker) {
              run(task * block, std::min(rows, (task + 1) * block), worker);
            }};
  }

  // V[u] -= eta P' x_u, where p_hidden_ holds H P'^T for the P' of the step without decay.
  Tasks UpdateRows() const {
    return resources_.RowTasks(targets_.size(), 32.0 * width_,
                               [=](int64_t begin, int64_t end, int) {
                                 for (int64_t target = begin; target < end; ++target) {
                                   T* row = state_.Row(targets_.classes[target]);
                                   if (rows_[target] != row)
                                     std::memcpy(row, rows_[target], width_ * sizeof(T));
                                   ForEachExample(target, [&](int64_t i, T g) {
                                     kernels_.add(-eta_ * g, p_hidden_ + i * width_, width_, row);
                                   });
                                 }
                               });
  }

  void SetSlots(int32_t slot) const {
    for (int64_t id : targets_.classes) MoveToSlot(state_, id, slot);
  }

  // w' = beta (M w - eta H^T g_s), c' = beta (M c - eta H^T (alpha + C g_s)).
  Tasks UpdateVectors() const {
    return {1, [=](int64_t, int) {
              for (int64_t d = 0; d < width_; ++d) {
                state_.w[d] = beta_ * (state_.w[d] - vectors_[kShiftStep * width_ + d]);
                state_.c[d] = beta_ * (state_.c[d] - vectors_[kRowSumStep * width_ + d]);
              }
            }};
  }

  // Copies what is below the diagonal of a matrix [D, D] above it.
  Tasks Mirror(T* matrix) const {
    constexpr int64_t kRows = 16;
    const int64_t n = width_;
    return {(n + kRows - 1) / kRows, [=](int64_t task, int) {
              const int64_t begin = task * kRows, end = std::min(n, begin + kRows);
              kernels_.transpose(matrix + begin * n, n, end - begin, begin, matrix + begin, n);
              for (int64_t i = begin; i < end; ++i) {
                for (int64_t j = begin; j < i; ++j) matrix[j * n + i] = matrix[i * n + j];
              }
            }};
  }

  void SetNorm(const T* matrix, int64_t row, T* norms) const {
    norms[row] = kernels_.dot(matrix + row * width_, matrix + row * width_, width_);
  }

  FactoredOutcome Finish() const {
    SetSlots(*state_.current_slot);
    double u_square = 0, p_square = 0;
    for (int64_t d = 0; d < width_; ++d) {
      u_square += norms_[d];
      p_square += norms_[width_ + d];
    }
    const double scale = std::sqrt(u_square / width_);
    const double condition = std::sqrt(u_square) * std::sqrt(p_square) / width_;
    const bool well =
        condition <= rates_.max_condition && scale <= kMaxScale && scale >= 1 / kMaxScale;
    if (!well && std::isfinite(rates_.max_condition)) Reanchor(state_, resources_);
    return {false, 0};
  }

  // ---- B <= D: through [B, B] matrices. Returns false, with the state unchanged and everything
  // done that ThroughWidth needs, if M is not safely positive definite.

  bool TryThroughExamples() {
    Factorization<T> system = NewFactorization(size_);
    system.k = Take(size_ * size_);
    system.s = scale_;
    bool is_safe = false;
    Tasks factor = {1, [&](int64_t, int) {
                      kernels_.multiply({batch_.hidden, width_, 1, hidden_transposed_panels_,
                                         width_, size_, system.k, size_, 1, 0},
                                        0, size_, true);
                      is_safe = kernels_.factor(system);
                    }};
    Phase before = PackHidden();
    before.tasks.push_back(PackRows(state_.u, width_, width_, nullptr, u_panels_));
    before.tasks.push_back(SumTargets());
    resources_.Run({before,
                    {"update: factor, Y, E, P H^T",
                     {factor, GradientRows(), PHidden(), Vectors(), MergeRows()}}});
    if (!is_safe) return false;

    T* products = Take(size_ * size_);  // (E + Y) H^T
    T* r = Take(size_ * width_);        // R^T = E - eta / 2 T H
    T* r_panels = TakePanels(size_, width_);
    resources_.Run(
        {{"update: T, solve, U", {ErrorProducts(products), SolvePHidden(system), UpdateU()}},
         {"update: R, P, V", {ResidualRows(products, r, r_panels), UpdateP(), UpdateRows()}},
         {"update: Q", {UpdateGram(r, r_panels), UpdateVectors()}},
         {"update: mirror Q", {Mirror(state_.q)}}});
    return true;
  }

  Factorization<T> NewFactorization(int64_t n) {
    Factorization<T> f;
    f.size = n;
    f.min_pivot = static_cast<T>(kMinPivot);
    f.max_pivot = static_cast<T>(kMaxPivot);
    f.pivots = Take(n);
    f.lower = Take(n * n);
    f.upper = Take(n * n);
    f.scratch = Take(kernels_.factor_scratch(n));
    return f;
  }

  Tasks ErrorProducts(T* products) const {
    return BlockTasks(size_, RowsOf(2.0 * width_ * size_),
                      [=](int64_t begin, int64_t end, int worker) {
                        T* sums = BlockOf(worker);
                        for (int64_t at = begin * width_; at < end * width_; ++at) {
                          sums[at - begin * width_] = error_[at] + y_[at];
                        }
                        kernels_.multiply({sums, width_, 1, hidden_transposed_panels_, width_,
                                           size_, products + begin * size_, size_, 1, 0},
                                          0, end - begin, false);
                      });
  }

  // H P'^T = (I - 2 eta K G)^-1 H P^T, a panel of columns at a time.
  Tasks SolvePHidden(const Factorization<T>& system) const {
    return {resources_.NumPanels(width_), [=](int64_t panel, int worker) {
              const int64_t first = panel * kernels_.panel_width;
              const int64_t columns = std::min(kernels_.panel_width, width_ - first);
              T *block = BlockOf(worker), *from = p_hidden_ + first;
              // One panel of a matrix that has its rows width_ apart.
              PackColumns(from, columns, block);
              kernels_.solve(system, block);
              for (int64_t i = 0; i < size_; ++i) {
                std::memcpy(from + i * width_, block + i * kernels_.panel_width,
                            columns * sizeof(T));
              }
            }};
  }

  void PackColumns(const T* from, int64_t columns, T* panel) const {
    kernels_.pack(from, width_, size_, columns, nullptr, 0, size_, panel);
  }

  // U' = beta (U - 2 eta (U H^T) G H).
  Tasks UpdateU() const {
    const Product<T> product = {gradients_.u_hidden,
                                1,
                                width_,
                                scaled_hidden_panels_,
                                size_,
                                width_,
                                state_.u,
                                width_,
                                -beta_,
                                beta_};
    return resources_.RowTasks(width_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int) {
      kernels_.multiply(product, begin, end, false);
      for (int64_t d = begin; d < end; ++d) SetNorm(state_.u, d, norms_);
    });
  }

  // P' = (P + 2 eta (P' H^T) G H) / beta, with the P' without decay on the right.
  Tasks UpdateP() const {
    const Product<T> product = {p_hidden_, 1,        width_,   scaled_hidden_panels_,
                                size_,     width_,   state_.p, width_,
                                1 / beta_, 1 / beta_};
    return resources_.RowTasks(width_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int) {
      kernels_.multiply(product, begin, end, false);
      for (int64_t d = begin; d < end; ++d) SetNorm(state_.p, d, norms_ + width_);
    });
  }

  // Rows of R^T = E - eta / 2 T H, where T = X + X^T + Abar^T Abar, X = (E + Y) H^T G.
  Tasks ResidualRows(const T* products, T* r, T* r_panels) const {
    return BlockTasks(
        size_, RowsOf(2.0 * size_ * width_), [=](int64_t begin, int64_t end, int worker) {
          T* t = BlockOf(worker);
          kernels_.transpose(products + begin, size_, size_, end - begin, t, size_);
          for (int64_t i = begin; i < end; ++i) {
            T* row = t + (i - begin) * size_;
            for (int64_t j = 0; j < size_; ++j) {
              row[j] = row[j] * gradients_.g_squares[i] +
                       products[i * size_ + j] * gradients_.g_squares[j];
            }
          }
          kernels_.multiply(
              {t, size_, 1, hidden_panels_, size_, width_, r + begin * width_, width_, 1, 0}, 0,
              end - begin, false);
          for (int64_t i = begin; i < end; ++i) {
            T* row = r + i * width_;
            AddTargetProducts(i, row);
            for (int64_t d = 0; d < width_; ++d) {
              row[d] = error_[i * width_ + d] - eta_ / 2 * row[d];
            }
          }
          kernels_.pack(r, width_, size_, width_, nullptr, begin, end, r_panels);
        });
  }

  // Q' = beta^2 (Q - eta (R H + H^T R^T)), the lower triangle.
  Tasks UpdateGram(const T* r, const T* r_panels) const {
    const T square = beta_ * beta_;
    const Product<T> left = {batch_.hidden, 1,        width_, r_panels,       size_,
                             width_,        state_.q, width_, -square * eta_, square};
    const Product<T> right = {r,      1,        width_, hidden_panels_, size_,
                              width_, state_.q, width_, -square * eta_, 1};
    return resources_.RowTasks(width_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int) {
      kernels_.multiply(left, begin, end, true);
      kernels_.multiply(right, begin, end, true);
    });
  }

  // ---- B > D, or an M that can't be inverted safely: through [D, D] matrices.

  FactoredOutcome ThroughWidth() {
    const int64_t square = width_ * width_;
    T* k = Take(square);  // I - M = 2 eta H^T G H
    T* k_panels = TakePanels(width_, width_);
    T* j = Take(square);          // Y^T H
    T* z = Take(size_ * width_);  // Abar^T Abar H
    T* z_panels = TakePanels(size_, width_);
    T* half = Take(square);  // F = Q M / 2 - eta Y^T H: Q' = M F + F^T M + eta^2 H^T Z
    T* half_panels = TakePanels(width_, width_);
    resources_.Run({{"width: H^T G H, Y^T H",
                     {LowerProduct(batch_.hidden, scaled_hidden_panels_, k),
                      FullProduct(y_, hidden_panels_, j), TargetProductRows(z, z_panels)}},
                    {"width: mirror K", {Mirror(k)}},
                    {"width: pack K", {PackRows(k, width_, width_, nullptr, k_panels)}}});
    const bool is_safe = size_ > width_ && FactorWidth(k);
    if (!is_safe) {
      const double bound = beta_ * LargestEigenvalue(k, width_);
      if (!(bound <= 2)) return {true, bound / (2 * rates_.learning_rate)};
    }
    resources_.Run({{"width: F, U", {HalfGram(k_panels, j, half), UpdateUThroughWidth(k_panels)}},
                    {"width: pack F", {PackRows(half, width_, width_, nullptr, half_panels)}},
                    {"width: Q", {GramThroughWidth(k, k_panels, half, half_panels, z_panels)}},
                    {"width: mirror Q", {Mirror(state_.q), UpdateVectors()}}});
    if (!is_safe) return EndInNewAnchor();
    resources_.Run({{"width: P", {SolveP()}},
                    {"width: P H^T", {PHidden()}},
                    {"width: V", {UpdateRows(), DecayP()}}});
    return Finish();
  }

  // The lower triangle of left^T right, [D, D].
  Tasks LowerProduct(const T* left, const T* panels, T* product) const {
    const Product<T> p = {left, 1, width_, panels, size_, width_, product, width_, 1, 0};
    return resources_.RowTasks(width_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int) {
      kernels_.multiply(p, begin, end, true);
    });
  }

  Tasks FullProduct(const T* left, const T* panels, T* product) const {
    const Product<T> p = {left, 1, width_, panels, size_, width_, product, width_, 1, 0};
    return resources_.RowTasks(width_, 2.0 * width_ * size_, [=](int64_t begin, int64_t end, int) {
      kernels_.multiply(p, begin, end, false);
    });
  }

  Tasks TargetProductRows(T* z, T* z_panels) const {
    return resources_.RowTasks(size_, 16.0 * width_, [=](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        T* row = z + i * width_;
        std::fill(row, row + width_, T{0});
        AddTargetProducts(i, row);
      }
      kernels_.pack(z, width_, size_, width_, nullptr, begin, end, z_panels);
    });
  }

  bool FactorWidth(const T* k) {
    m_ = NewFactorization(width_);
    m_.k = Take(width_ * width_);
    std::memcpy(m_.k, k, width_ * width_ * sizeof(T));
    T* ones = Take(width_);
    std::fill(ones, ones + width_, T{1});
    m_.s = ones;
    return kernels_.factor(m_);
  }

  Tasks HalfGram(const T* k_panels, const T* j, T* half) const {
    const Product<T> p = {state_.q, width_, 1, k_panels, width_, width_, half, width_, T{-0.5}, 0};
    return resources_.RowTasks(width_, 2.0 * width_ * width_, [=](int64_t begin, int64_t end, int) {
      kernels_.multiply(p, begin, end, false);
      for (int64_t at = begin * width_; at < end * width_; ++at) {
        half[at] += state_.q[at] / 2 - eta_ * j[at];
      }
    });
  }

  Tasks UpdateUThroughWidth(const T* k_panels) const {
    return BlockTasks(
        width_, RowsOf(2.0 * width_ * width_), [=](int64_t begin, int64_t end, int worker) {
          T *rows = BlockOf(worker), *u = state_.u + begin * width_;
          std::memcpy(rows, u, (end - begin) * width_ * sizeof(T));
          kernels_.multiply({rows, width_, 1, k_panels, width_, width_, u, width_, -beta_, beta_},
                            0, end - begin, false);
          for (int64_t d = begin; d < end; ++d) SetNorm(state_.u, d, norms_);
        });
  }

  // Q' = beta^2 (F + F^T - (K F + F^T K) + eta^2 H^T Z) with K = I - M, the lower triangle.
  Tasks GramThroughWidth(const T* k, const T* k_panels, const T* half, const T* half_panels,
                         const T* z_panels) const {
    const T square = beta_ * beta_;
    const Product<T> left = {k,      width_,   1,      half_panels, width_,
                             width_, state_.q, width_, -square,     square};
    const Product<T> right = {half,   1,        width_, k_panels, width_,
                              width_, state_.q, width_, -square,  1};
    const Product<T> targets = {
        batch_.hidden,        1, width_, z_panels, size_, width_, state_.q, width_,
        square * eta_ * eta_, 1};
    return resources_.RowTasks(width_, 4.0 * width_ * width_, [=](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t d = 0; d <= i; ++d) {
          state_.q[i * width_ + d] = half[i * width_ + d] + half[d * width_ + i];
        }
      }
      kernels_.multiply(left, begin, end, true);
      kernels_.multiply(right, begin, end, true);
      kernels_.multiply(targets, begin, end, true);
    });
  }

  // P' = P M^-1, a panel of rows at a time: M is symmetric.
  Tasks SolveP() const {
    return {resources_.NumPanels(width_), [=](int64_t panel, int worker) {
              const int64_t first = panel * kernels_.panel_width;
              const int64_t rows = std::min(kernels_.panel_width, width_ - first);
              T *block = BlockOf(worker), *p = state_.p + first * width_;
              kernels_.pack_transposed(p, width_, width_, rows, nullptr, 0, 1, block);
              kernels_.solve(m_, block);
              kernels_.transpose(block, kernels_.panel_width, width_, rows, p, width_);
            }};
  }

  Tasks DecayP() const {
    return resources_.RowTasks(width_, 8.0 * width_, [=](int64_t begin, int64_t end, int) {
      for (int64_t d = begin; d < end; ++d) {
        for (int64_t at = d * width_; at < (d + 1) * width_; ++at) state_.p[at] /= beta_;
        SetNorm(state_.p, d, norms_ + width_);
      }
    });
  }

  // With U' in place: the target rows become V[u] U' - beta eta x_u in the coordinates of a new
  // anchor, which needs no P'.
  FactoredOutcome EndInNewAnchor() const {
    const int64_t n = targets_.size();
    Workspace::Scope scope(resources_.workspace);
    T* rows = resources_.workspace.template Take<T>(n * width_);
    T* moved = resources_.workspace.template Take<T>(n * width_);
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(rows + i * width_, rows_[i], width_ * sizeof(T));
    }
    const Product<T> product = {rows, width_, 1, u_panels_, width_, width_, moved, width_, 1, 0};
    const Tasks multiply = resources_.RowTasks(
        n, 2.0 * width_ * width_,
        [&](int64_t begin, int64_t end, int) { kernels_.multiply(product, begin, end, false); });
    resources_.Run({{"new anchor: pack", {PackRows(state_.u, width_, width_, nullptr, u_panels_)}},
                    {"new anchor: V U", {multiply}}});
    Reanchor(state_, resources_);
    for (int64_t i = 0; i < n; ++i) {
      T* row = moved + i * width_;
      kernels_.add(-beta_ * eta_, merged_ + i * width_, width_, row);
      std::memcpy(state_.Row(targets_.classes[i]), row, width_ * sizeof(T));
    }
    SetSlots(*state_.current_slot);
    return {false, 0};
  }

  const FactoredState<T>& state_;
  const FactoredBatch<T>& batch_;
  const FactoredGradients<T>& gradients_;
  const FactoredRates<T>& rates_;
  const FactoredResources<T>& resources_;
  const DenseKernels<T>& kernels_;
  const Workspace::Scope scope_;
  const MergedLabels targets_;
  const std::vector<const T*> rows_;  // of V, of the targets, in the current coordinates
  const int64_t size_, width_;        // B, D
  const T beta_, eta_;

  T* const error_;               // E [B, D]
  T* target_sums_;               // [B, D]: sum of g_a V[y] over the labels of an example
  T* y_;                         // Y [B, D]
  T* u_panels_;                  // U
  T* alpha_;                     // [B]
  T* scale_;                     // [B]: 2 eta g_q
  T* hidden_transposed_panels_;  // H^T
  T* hidden_panels_;             // H
  T* scaled_hidden_panels_;      // 2 eta G H
  T *coefficients_, *vectors_;   // [kNumVectors, B] and [kNumVectors, D]
  T* merged_;                    // x_u [targets, D]
  T* p_hidden_;                  // H P^T, then H P'^T, [B, D]
  T* norms_;                     // [2, D]: squares of the rows of U' and P'
  T* blocks_;                    // a block of rows a worker
  int64_t block_rows_, block_size_;
  Factorization<T> m_;  // of M
};

}  // namespace

template <typename T>
FactoredOutcome FactoredUpdate(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                               const FactoredGradients<T>& gradients, const FactoredRates<T>& rates,
                               bool update, const FactoredResources<T>& resources,
                               T* hidden_gradient) {
  Step<T> step(state, batch, gradients, rates, resources, hidden_gradient);
  if (update) return step.Update();
  step.Gradient();
  return {false, 0};
}

template FactoredOutcome FactoredUpdate(const FactoredState<float>&, const FactoredBatch<float>&,
                                        const FactoredGradients<float>&,
                                        const FactoredRates<float>&, bool,
                                        const FactoredResources<float>&, float*);
template FactoredOutcome FactoredUpdate(const FactoredState<double>&, const FactoredBatch<double>&,
                                        const FactoredGradients<double>&,
                                        const FactoredRates<double>&, bool,
                                        const FactoredResources<double>&, double*);

}  // namespace tfx::core
