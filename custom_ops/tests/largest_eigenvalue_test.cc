// SPDX-License-Identifier: Apache-2.0

#include "core/largest_eigenvalue.h"

#include <cmath>
#include <random>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

bool IsClose(double x, double y) { return std::abs(x - y) < 1e-4 * (1 + std::abs(y)); }

TEST(OfDiagonalMatrices) {
  for (int n : {1, 2, 7, 100}) {
    for (double sign : {1.0, -1.0}) {
      std::vector<double> matrix(n * n, 0.0);
      for (int i = 0; i < n; ++i) matrix[i * n + i] = sign * (1 + i % 5);
      EXPECT(IsClose(LargestEigenvalue(matrix.data(), n), sign > 0 ? std::min(n, 5) : -1.0));
    }
  }
}

TEST(OfMatricesOfRankOne) {
  const int n = 30;
  std::vector<float> matrix(n * n);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) matrix[i * n + j] = static_cast<float>(i * j);
  }
  EXPECT(IsClose(LargestEigenvalue(matrix.data(), n), 29 * 30 * 59 / 6.0));
  for (float& entry : matrix) entry = -entry;
  EXPECT(IsClose(LargestEigenvalue(matrix.data(), n), 0.0));
  for (float& entry : matrix) entry = 0;
  EXPECT(LargestEigenvalue(matrix.data(), n) == 0.0);
}

// H^T H of positive activations: one large eigenvalue, which the row sums bracket.
TEST(OfAGramMatrix) {
  const int n = 90, examples = 40;
  std::mt19937 random(5);
  std::vector<double> h(examples * n), gram(n * n, 0.0), x(n, 1.0);
  for (double& entry : h) entry = random() % 100 / 100.0;
  for (int e = 0; e < examples; ++e) {
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) gram[i * n + j] += h[e * n + i] * h[e * n + j];
    }
  }
  double eigenvalue = 0;
  for (int step = 0; step < 200; ++step) {  // power iteration
    std::vector<double> y(n, 0.0);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) y[i] += gram[i * n + j] * x[j];
    }
    eigenvalue = 0;
    for (double entry : y) eigenvalue += entry * entry;
    eigenvalue = std::sqrt(eigenvalue);
    for (int i = 0; i < n; ++i) x[i] = y[i] / eigenvalue;
  }
  EXPECT(IsClose(LargestEigenvalue(gram.data(), n), eigenvalue));
}

}  // namespace tfx::core
