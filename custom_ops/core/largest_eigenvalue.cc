// SPDX-License-Identifier: Apache-2.0

#include "core/largest_eigenvalue.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tfx::core {
namespace {

constexpr int64_t kMostSteps = 64;

using Vector = std::vector<double>;

template <typename T>
Vector Multiply(const T* matrix, const Vector& x) {
  const size_t n = x.size();
  Vector y(n, 0.0);
  for (size_t i = 0; i < n; ++i) {  // by columns: the matrix is symmetric
    for (size_t j = 0; j < n; ++j) y[j] += x[i] * matrix[i * n + j];
  }
  return y;
}

double Dot(const Vector& x, const Vector& y) {
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// Whether a tridiagonal matrix has an eigenvalue above x (Sturm's count).
bool HasEigenvalueAbove(const Vector& diagonal, const Vector& beside, double x) {
  double pivot = 1.0;
  for (size_t i = 0; i < diagonal.size(); ++i) {
    const double square = i == 0 ? 0.0 : beside[i - 1] * beside[i - 1];
    if (pivot == 0.0) pivot = std::numeric_limits<double>::min();
    pivot = diagonal[i] - x - square / pivot;
    if (pivot > 0.0) return true;
  }
  return false;
}

}  // namespace

double LargestOfTridiagonal(const std::vector<double>& diagonal,
                            const std::vector<double>& beside) {
  double bound = 0.0;  // Gershgorin
  for (size_t i = 0; i < diagonal.size(); ++i) {
    double radius = i > 0 ? std::abs(beside[i - 1]) : 0.0;
    if (i + 1 < diagonal.size()) radius += std::abs(beside[i]);
    bound = std::max(bound, std::abs(diagonal[i]) + radius);
    if (!std::isfinite(diagonal[i] + radius)) return std::numeric_limits<double>::infinity();
  }
  double low = -bound, high = bound;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (HasEigenvalueAbove(diagonal, beside, middle) ? low : high) = middle;
  }
  return high;
}

template <typename T>
double LargestEigenvalue(const T* matrix, int64_t n) {
  std::mt19937 random(1);
  Vector x(n), before(n, 0.0), diagonal, beside;
  for (double& entry : x) entry = static_cast<double>(random()) / random.max() + 0.1;
  double norm = std::sqrt(Dot(x, x)), scale = 0.0;
  for (int64_t step = 0; step < std::min(n, kMostSteps); ++step) {
    for (double& entry : x) entry /= norm;
    Vector y = Multiply(matrix, x);
    diagonal.push_back(Dot(x, y));
    scale = std::max(scale, std::sqrt(Dot(y, y)));
    for (int64_t i = 0; i < n; ++i) {
      y[i] -= diagonal.back() * x[i] + (step == 0 ? 0.0 : beside.back() * before[i]);
    }
    before = std::move(x);
    x = std::move(y);
    norm = std::sqrt(Dot(x, x));
    if (!(norm > 1e-12 * scale)) break;  // an invariant subspace
    beside.push_back(norm);
  }
  return LargestOfTridiagonal(diagonal, beside);
}

template double LargestEigenvalue(const float* matrix, int64_t n);
template double LargestEigenvalue(const double* matrix, int64_t n);

}  // namespace tfx::core
