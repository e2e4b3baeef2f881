// SPDX-License-Identifier: Apache-2.0
//
// A factored layer and the naive one, for tests.

#ifndef TFX_LARGEOUT_TESTS_FACTORED_LAYER_H_
#define TFX_LARGEOUT_TESTS_FACTORED_LAYER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/factored_coordinates.h"
#include "core/factored_statistics.h"
#include "core/factored_update.h"
#include "tests/expect.h"
#include "tests/workers.h"

namespace tfx::core {

constexpr int64_t kSlots = 8;
constexpr double kMaxCondition = 4;
constexpr double kLeastScale = 1e-3;

struct Shape {
  int64_t classes, width, batch, num_labels;
};

using Matrix = std::vector<double>;

// The state of a layer that starts from V = W, and its memory.
template <typename T>
struct Layer {
  Layer(const Shape& shape, const Matrix& weights)
      : v(weights.begin(), weights.end()),
        u(shape.width * shape.width, 0),
        gram(u),
        shift(shape.width, 0),
        row_sum(shift),
        transitions(kSlots * u.size(), 0),
        row_slot(shape.classes, 0),
        slot_rows(kSlots, 0) {
    const int64_t width = shape.width;
    for (int64_t d = 0; d < width; ++d) u[d * width + d] = transitions[d * width + d] = 1;
    p = u;
    slot_rows[0] = shape.classes;
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t j = 0; j < width; ++j) gram[i * width + j] = GramEntry(weights, width, i, j);
    }
    for (size_t at = 0; at < weights.size(); ++at)
      row_sum[at % width] += static_cast<T>(weights[at]);
  }

  static T GramEntry(const Matrix& weights, int64_t width, int64_t i, int64_t j) {
    double sum = 0;
    for (size_t row = 0; row < weights.size(); row += width) {
      sum += weights[row + i] * weights[row + j];
    }
    return static_cast<T>(sum);
  }

  // The state, with the pointers of arrays from `of`.
  template <typename Of>
  FactoredState<T> State(Of&& of) {
    return {of(v),
            of(u),
            of(p),
            of(gram),
            of(shift),
            of(row_sum),
            of(transitions),
            of(row_slot),
            of(slot_rows),
            of(current_slot),
            static_cast<int64_t>(row_slot.size()),
            static_cast<int64_t>(shift.size()),
            kSlots};
  }
  FactoredState<T> State() {
    return State([](auto& array) { return array.data(); });
  }

  Matrix Weights() const {
    const size_t width = shift.size();
    Matrix weights(v.size());
    for (size_t row = 0; row < row_slot.size(); ++row) {
      const T* transition = transitions.data() + row_slot[row] * width * width;
      Matrix current(width, 0.0);
      for (size_t i = 0; i < width; ++i) {
        for (size_t j = 0; j < width; ++j) {
          current[j] += static_cast<double>(v[row * width + i]) * transition[i * width + j];
        }
      }
      for (size_t j = 0; j < width; ++j) {
        double sum = shift[j];
        for (size_t i = 0; i < width; ++i) sum += current[i] * u[i * width + j];
        weights[row * width + j] = sum;
      }
    }
    return weights;
  }

  bool operator==(const Layer& other) const {
    return v == other.v && u == other.u && p == other.p && gram == other.gram &&
           shift == other.shift && row_sum == other.row_sum && transitions == other.transitions &&
           row_slot == other.row_slot && slot_rows == other.slot_rows &&
           current_slot == other.current_slot;
  }

  std::vector<T> v, u, p, gram, shift, row_sum, transitions;
  std::vector<uint8_t> row_slot;
  std::vector<int64_t> slot_rows;
  std::vector<int64_t> current_slot = {0};
};

enum class Signs { kPositive, kMixed, kZero };

// A batch, the gradients of its statistics, and the learning rate for a given 2 eta lambda_max.
template <typename T>
struct Batch {
  Batch(const Shape& shape, Signs signs, double step, std::mt19937& random)
      : shape(shape),
        hidden(shape.batch * shape.width),
        g_target(shape.batch * shape.num_labels),
        g_squares(shape.batch),
        g_sum(shape.batch),
        labels(shape.batch * shape.num_labels) {
    std::normal_distribution<double> normal;
    for (T& x : hidden) x = static_cast<T>(normal(random));
    for (T& x : g_target) x = static_cast<T>(normal(random));
    for (T& x : g_sum) x = static_cast<T>(0.1 * normal(random));
    for (T& x : g_squares) {
      const double value = normal(random);
      x = static_cast<T>(signs == Signs::kZero    ? 0
                         : signs == Signs::kMixed ? value
                                                  : std::abs(value));
    }
    // Few classes, so that labels repeat.
    const int64_t range = std::min<int64_t>(shape.classes, 12) + 1;
    for (int64_t& label : labels) label = static_cast<int64_t>(random() % range) - 1;
    learning_rate = static_cast<T>(step / (2 * std::max(LambdaMax(), 1.0)));
  }

  // The largest eigenvalue of H^T G H, by power iteration on the matrix plus a multiple of I.
  double LambdaMax() const {
    double shift = 1;
    for (int64_t i = 0; i < shape.batch; ++i) {
      double square = 0;
      for (int64_t d = 0; d < shape.width; ++d) square += Squared(hidden[i * shape.width + d]);
      shift += std::max(0.0, -static_cast<double>(g_squares[i])) * square;
    }
    Matrix x(shape.width, 1.0);
    double norm = 1;
    for (int step = 0; step < 4000; ++step) {
      norm = 0;
      for (double entry : x) norm += entry * entry;
      norm = std::sqrt(norm);
      Matrix y(shape.width);
      for (int64_t d = 0; d < shape.width; ++d) y[d] = shift * x[d] / norm;
      for (int64_t i = 0; i < shape.batch; ++i) {
        double dot = 0;
        for (int64_t d = 0; d < shape.width; ++d) dot += hidden[i * shape.width + d] * x[d] / norm;
        for (int64_t d = 0; d < shape.width; ++d) {
          y[d] += g_squares[i] * dot * hidden[i * shape.width + d];
        }
      }
      x = y;
    }
    norm = 0;
    for (double entry : x) norm += entry * entry;
    return std::sqrt(norm) - shift;
  }

  static double Squared(double x) { return x * x; }

  FactoredBatch<T> View() const {
    return {hidden.data(), labels.data(), shape.batch, shape.num_labels};
  }

  Shape shape;
  std::vector<T> hidden, g_target, g_squares, g_sum;
  std::vector<int64_t> labels;
  T learning_rate;
};

// The naive layer.
struct Naive {
  template <typename T>
  void Step(const Batch<T>& b, double weight_decay) {
    const auto [classes, width, batch, num_labels] = b.shape;
    Matrix next = weights;
    for (double& x : next) x *= 1 - b.learning_rate * weight_decay;
    hidden_gradient.assign(batch * width, 0.0);
    targets.assign(batch * num_labels, 0.0);
    squares.assign(batch, 0.0);
    sums.assign(batch, 0.0);
    for (int64_t i = 0; i < batch; ++i) {
      const T* h = b.hidden.data() + i * width;
      for (int64_t row = 0; row < classes; ++row) {
        const double* w = weights.data() + row * width;
        double logit = 0;
        for (int64_t d = 0; d < width; ++d) logit += w[d] * h[d];
        double gradient = 2 * b.g_squares[i] * logit + b.g_sum[i];
        for (int64_t at = i * num_labels; at < (i + 1) * num_labels; ++at) {
          if (b.labels[at] != row) continue;
          gradient += b.g_target[at];
          targets[at] = logit;
        }
        squares[i] += logit * logit;
        sums[i] += logit;
        for (int64_t d = 0; d < width; ++d) {
          hidden_gradient[i * width + d] += gradient * w[d];
          next[row * width + d] -= b.learning_rate * gradient * h[d];
        }
      }
    }
    weights = next;
  }

  // The largest root mean square of an example's logits. The error of a target is relative to it:
  // the only target of a batch can be near 0 because its terms cancel.
  double LogitScale(const Shape& shape) const {
    double scale = kLeastScale;
    for (double square : squares) scale = std::max(scale, std::sqrt(square / shape.classes));
    return scale;
  }

  Matrix weights, hidden_gradient, targets, squares, sums;
};

// The largest difference, relative to the largest expected entry or to `scale` if that is larger.
template <typename T>
double Distance(const std::vector<T>& got, const Matrix& want, double scale = kLeastScale) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - want[i]));
    scale = std::max(scale, std::abs(want[i]));
  }
  return worst / scale;
}

inline Matrix RandomWeights(const Shape& shape, std::mt19937& random) {
  std::normal_distribution<double> normal;
  Matrix weights(shape.classes * shape.width);
  for (double& x : weights) {
    x = static_cast<float>(normal(random) / std::sqrt(static_cast<double>(shape.width)));
  }
  return weights;
}

inline InstructionSet BestSet() { return InstructionSets().front(); }

// Statistics and a step on the factored layer.
template <typename T>
struct Factored {
  Factored(const Shape& shape, const Matrix& weights, InstructionSet set = BestSet(),
           int num_workers = 2)
      : layer(shape, weights), workers(set, num_workers), execution(workers.execution) {}

  FactoredOutcome Step(const Batch<T>& b, double weight_decay, double max_condition, bool update) {
    Prepare(b, update);
    return Update(b, weight_decay, max_condition, update);
  }

  // Computes the statistics.
  void Prepare(const Batch<T>& b, bool update = true) {
    const auto [classes, width, batch, num_labels] = b.shape;
    targets.resize(batch * num_labels);
    squares.resize(batch);
    sums.resize(batch);
    gram_hidden.resize(batch * width);
    u_hidden.resize(batch * width);
    hidden_gradient.resize(batch * width);
    FactoredStatistics<T>(
        layer.State(), b.View(), update, execution,
        {targets.data(), squares.data(), sums.data(), gram_hidden.data(), u_hidden.data()});
  }

  FactoredOutcome Update(const Batch<T>& b, double weight_decay, double max_condition,
                         bool update) {
    return FactoredUpdate<T>(
        layer.State(), b.View(),
        {gram_hidden.data(), u_hidden.data(), b.g_target.data(), b.g_squares.data(),
         b.g_sum.data()},
        {b.learning_rate, static_cast<T>(weight_decay), static_cast<T>(max_condition)}, update,
        execution, hidden_gradient.data());
  }

  Layer<T> layer;
  const Workers workers;
  const DenseExecution<T> execution;
  std::vector<T> targets, squares, sums, gram_hidden, u_hidden, hidden_gradient;
};

template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 3e-5 : 1e-12;

template <typename T>
void Reanchor(const FactoredState<T>& state, const DenseExecution<T>& execution) {
  const Workspace::Scope scope(execution.workspace);
  NewAnchor<T>(state, execution).Start();
}

template <typename T>
void ExpectSlotsAreCounted(const Layer<T>& layer) {
  std::vector<int64_t> counts(kSlots, 0);
  for (uint8_t slot : layer.row_slot) ++counts[slot];
  EXPECT(counts == layer.slot_rows);
}

// For Factored, or the same on a GPU.
template <template <typename> class LayerSteps, typename T>
void ExpectSame(const LayerSteps<T>& factored, const Naive& naive, const Shape& shape) {
  EXPECT(Distance(factored.targets, naive.targets, naive.LogitScale(shape)) < kTolerance<T>);
  EXPECT(Distance(factored.squares, naive.squares) < kTolerance<T>);
  EXPECT(Distance(factored.sums, naive.sums) < kTolerance<T>);
  EXPECT(Distance(factored.hidden_gradient, naive.hidden_gradient) < kTolerance<T>);
  EXPECT(Distance(factored.layer.Weights(), naive.weights) < kTolerance<T>);
  const Layer<double> want(shape, naive.weights);
  EXPECT(Distance(factored.layer.gram, want.gram) < kTolerance<T>);
  EXPECT(Distance(factored.layer.row_sum, want.row_sum) < kTolerance<T>);
  const auto& q = factored.layer.gram;
  for (int64_t i = 0; i < shape.width; ++i) {
    for (int64_t j = 0; j < i; ++j) EXPECT(q[i * shape.width + j] == q[j * shape.width + i]);
  }
  ExpectSlotsAreCounted(factored.layer);
}

// For a layer on any device.
template <template <typename> class LayerSteps>
void DivergingStepsAreRefused() {
  for (const Shape& shape : {Shape{40, 12, 5, 2}, Shape{40, 12, 30, 1}}) {
    for (Signs signs : {Signs::kPositive, Signs::kMixed}) {
      std::mt19937 random(2);
      LayerSteps<double> factored(shape, RandomWeights(shape, random));
      const Batch<double> batch(shape, signs, 2.01, random);
      const Layer<double> before = factored.layer;
      const FactoredOutcome outcome = factored.Step(batch, 0.0, kMaxCondition, true);
      EXPECT(outcome.diverges);
      EXPECT(std::abs(2 * batch.learning_rate * outcome.lambda_max - 2.01) < 1e-3);
      EXPECT(factored.layer == before);
    }
  }
}

template <template <typename> class LayerSteps>
void WithoutUpdateTheStateStays() {
  const Shape shape = {40, 12, 5, 2};
  std::mt19937 random(3);
  Naive naive;
  naive.weights = RandomWeights(shape, random);
  LayerSteps<double> factored(shape, naive.weights);
  const Batch<double> first(shape, Signs::kPositive, 1.5, random);
  factored.Step(first, 0.0, kMaxCondition, true);  // leaves stale rows
  naive.Step(first, 0.0);
  const Layer<double> before = factored.layer;
  const Batch<double> batch(shape, Signs::kPositive, 0.5, random);
  EXPECT(!factored.Step(batch, 0.0, kMaxCondition, false).diverges);
  EXPECT(factored.layer == before);
  const Matrix weights = naive.weights;
  naive.Step(batch, 0.0);
  naive.weights = weights;
  ExpectSame(factored, naive, shape);
}

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_TESTS_FACTORED_LAYER_H_
