// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/execution.h"
#include "tests/expect.h"
#include "tests/workers.h"

namespace tfx::core {

// Whole numbers, so that every instruction set must agree to the last bit.
template <typename T>
std::vector<T> Whole(int64_t size, int seed) {
  std::mt19937 random(seed);
  std::vector<T> x(size);
  for (T& entry : x) entry = static_cast<T>(static_cast<int>(random() % 7) - 3);
  return x;
}

template <typename T>
int64_t PanelsSize(const DenseKernels<T>& kernels, int64_t depth, int64_t columns) {
  return (columns + kernels.panel_width - 1) / kernels.panel_width * kernels.panel_width * depth;
}

template <typename T>
void ProductsAreExact(const DenseKernels<T>& kernels) {
  struct Shape {
    int64_t rows, depth, columns;
  };
  for (const Shape& s : {Shape{1, 1, 1}, {5, 3, 33}, {13, 700, 16}, {30, 0, 7}, {64, 17, 100}}) {
    for (bool transposed : {false, true}) {
      const auto a = Whole<T>(s.rows * s.depth, 1), b = Whole<T>(s.depth * s.columns, 2);
      const auto before = Whole<T>(s.rows * s.columns, 4);
      std::vector<T> panels(PanelsSize(kernels, s.depth, s.columns), 99);
      kernels.pack(b.data(), s.columns, s.depth, s.columns, 0, s.depth / 2, panels.data());
      kernels.pack(b.data(), s.columns, s.depth, s.columns, s.depth / 2, s.depth, panels.data());
      auto c = before, of_rows = before;
      Product<T> product = {a.data(),
                            transposed ? 1 : s.depth,
                            transposed ? s.rows : 1,
                            panels.data(),
                            s.depth,
                            s.columns,
                            c.data(),
                            s.columns,
                            2,
                            3};
      kernels.multiply(product, 0, s.rows, false);
      product.b = b.data();
      product.b_row = s.columns;
      product.c = of_rows.data();
      kernels.multiply(product, 0, s.rows, false);
      EXPECT(of_rows == c);
      for (int64_t i = 0; i < s.rows; ++i) {
        for (int64_t j = 0; j < s.columns; ++j) {
          T sum = 0;
          for (int64_t k = 0; k < s.depth; ++k) {
            sum += a[transposed ? k * s.rows + i : i * s.depth + k] * b[k * s.columns + j];
          }
          EXPECT(c[i * s.columns + j] == 2 * sum + 3 * before[i * s.columns + j]);
        }
      }
    }
  }
}

template <typename T>
void BetaZeroIgnoresWhatWasThere(const DenseKernels<T>& kernels) {
  const int64_t n = 19;
  const auto a = Whole<T>(n * n, 1);
  std::vector<T> panels(PanelsSize(kernels, n, n)), c(n * n, std::nan("")), lower = c;
  kernels.pack(a.data(), n, n, n, 0, n, panels.data());
  kernels.multiply({a.data(), n, 1, panels.data(), n, n, c.data(), n, 1, 0}, 0, n, false);
  kernels.multiply({a.data(), n, 1, panels.data(), n, n, lower.data(), n, 1, 0}, 0, 10, true);
  for (int64_t at = 0; at < 10 * n; ++at) EXPECT(std::isnan(lower[at]) || at % n < 10);
  kernels.multiply({a.data(), n, 1, a.data(), n, n, lower.data(), n, 1, 0, n}, 10, n, true);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      EXPECT(std::isfinite(c[i * n + j]));
      if (j <= i) EXPECT(lower[i * n + j] == c[i * n + j]);
    }
  }
}

template <typename T>
void TransposesAreExact(const DenseKernels<T>& kernels) {
  for (int64_t rows : {1, 4, 37}) {
    for (int64_t columns : {1, 16, 50}) {
      const auto x = Whole<T>(rows * columns, 5);
      std::vector<T> transposed(columns * rows), panels(PanelsSize(kernels, columns, rows), 99);
      kernels.transpose(x.data(), columns, rows, columns, transposed.data(), rows);
      const int64_t width = kernels.panel_width, num_panels = (rows + width - 1) / width;
      kernels.pack_transposed(x.data(), columns, columns, rows, 0, num_panels, panels.data());
      for (int64_t k = 0; k < columns; ++k) {
        for (int64_t i = 0; i < num_panels * width; ++i) {
          const T want = i < rows ? x[i * columns + k] : 0;
          if (i < rows) EXPECT(transposed[k * rows + i] == want);
          EXPECT(panels[i / width * columns * width + k * width + i % width] == want);
        }
      }
    }
  }
}

// A system I - K diag(s) whose eigenvalues lie in (0, 1], or in a wider range if signs are mixed.
template <typename T>
struct System {
  System(const DenseKernels<T>& kernels, int64_t n, bool mixed)
      : size(n),
        k(n * n),
        s(n),
        pivots(n),
        lower(n * n),
        upper(n * n),
        scratch(kernels.factor_scratch(n)) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::vector<double> x(n * (n + 3));
    for (double& entry : x) entry = normal(random) / std::sqrt(4.0 * n);
    for (int64_t i = 0; i < n; ++i) {
      s[i] = static_cast<T>(i % 5 == 0 ? 0 : mixed && i % 3 == 0 ? -0.5 : 0.7);
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < n + 3; ++d) sum += x[i * (n + 3) + d] * x[j * (n + 3) + d];
        k[i * n + j] = static_cast<T>(0.9 * sum);
      }
    }
  }

  Factorization<T> Factors(T* matrix) {
    return {size,          matrix,       s.data(),     T(0.01),       100,
            pivots.data(), lower.data(), upper.data(), scratch.data()};
  }

  int64_t size;
  std::vector<T> k, s, pivots, lower, upper, scratch;
};

template <typename T>
void SolutionsSolve(const DenseKernels<T>& kernels) {
  for (int64_t n : {1, 2, 31, 32, 33, 100, 131}) {
    for (bool mixed : {false, true}) {
      System<T> system(kernels, n, mixed);
      auto overwritten = system.k;
      for (int64_t i = 0; i < n; ++i) {  // only the lower triangle may be read
        for (int64_t j = i + 1; j < n; ++j) overwritten[i * n + j] = 1e9;
      }
      const Factorization<T> factors = system.Factors(overwritten.data());
      EXPECT(kernels.factor(factors));
      const int64_t width = kernels.panel_width;
      const auto right = Whole<T>(n * width, 8);
      auto x = right;
      kernels.solve(factors, x.data());
      double worst = 0;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t lane = 0; lane < width; ++lane) {
          double sum = x[i * width + lane];
          for (int64_t j = 0; j < n; ++j) {
            sum -= static_cast<double>(system.k[i * n + j]) * system.s[j] * x[j * width + lane];
          }
          worst = std::max(worst, std::abs(sum - right[i * width + lane]));
        }
      }
      EXPECT(worst < 2000 * std::numeric_limits<T>::epsilon());
    }
  }
}

template <typename T>
void ABadPivotIsRefused(const DenseKernels<T>& kernels) {
  for (T s : {T{2}, T{0.995}, T{-200}, static_cast<T>(std::nan(""))}) {
    System<T> system(kernels, 40, false);
    for (int64_t at = 0; at < 40 * 40; ++at) system.k[at] = at % 41 == 0;
    std::fill(system.s.begin(), system.s.end(), T{0.5});
    system.s[37] = s;
    EXPECT(!kernels.factor(system.Factors(system.k.data())));
  }
}

template <typename T>
void VectorsAreExact(const DenseKernels<T>& kernels) {
  for (int64_t n : {0, 1, 15, 64, 131}) {
    const auto x = Whole<T>(n, 1), y = Whole<T>(n, 2);
    auto sum = y;
    kernels.add(3, x.data(), n, sum.data());
    T dot = 0;
    for (int64_t i = 0; i < n; ++i) {
      dot += x[i] * y[i];
      EXPECT(sum[i] == y[i] + 3 * x[i]);
    }
    EXPECT(kernels.dot(x.data(), y.data(), n) == dot);
    EXPECT(kernels.all_finite(x.data(), n));
    for (int64_t i = 0; i < n; ++i) {
      auto bad = x;
      bad[i] = i % 2 == 0 ? std::numeric_limits<T>::infinity() : static_cast<T>(std::nan(""));
      EXPECT(!kernels.all_finite(bad.data(), n));
    }
  }
}

template <typename T>
void Run(InstructionSet set) {
  const DenseKernels<T>& kernels = DenseKernelsOf<T>(set);
  ProductsAreExact(kernels);
  BetaZeroIgnoresWhatWasThere(kernels);
  TransposesAreExact(kernels);
  SolutionsSolve(kernels);
  ABadPivotIsRefused(kernels);
  VectorsAreExact(kernels);
}

TEST(All) {
  for (InstructionSet set : InstructionSets()) {
    Run<float>(set);
    Run<double>(set);
  }
}

}  // namespace tfx::core
