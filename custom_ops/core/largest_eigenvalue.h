// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_LARGEST_EIGENVALUE_H_
#define TFX_LARGEOUT_CORE_LARGEST_EIGENVALUE_H_

#include <cstdint>

namespace tfx::core {

// The largest eigenvalue of a symmetric matrix [n, n], from below: Lanczos's method.
//
// Cost: at most 64 products with the matrix.
// Infinity if a number on the way is not finite.
// REQUIRES: n > 0.
template <typename T>
double LargestEigenvalue(const T* matrix, int64_t n);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_LARGEST_EIGENVALUE_H_
