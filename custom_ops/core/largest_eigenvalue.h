// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_LARGEST_EIGENVALUE_H_
#define TFX_LARGEOUT_CORE_LARGEST_EIGENVALUE_H_

#include <cstdint>
#include <vector>

namespace tfx::core {

// The largest eigenvalue of a symmetric matrix [n, n], from below: Lanczos's method.
//
// Cost: at most 64 products with the matrix.
// Returns infinity if an intermediate number is not finite.
// REQUIRES: n > 0.
template <typename T>
double LargestEigenvalue(const T* matrix, int64_t n);

// The same for a tridiagonal matrix, from its diagonal and its off-diagonal, which may have one
// number less. Infinity if a number is not finite.
double LargestOfTridiagonal(const std::vector<double>& diagonal, const std::vector<double>& beside);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_LARGEST_EIGENVALUE_H_
