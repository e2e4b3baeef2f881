// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_GPU_LANCZOS_H_
#define TFX_LARGEOUT_CORE_GPU_LANCZOS_H_

#include <cstdint>

#include "core/gpu/factored_checks.h"

struct CUstream_st;

namespace tfx::core::gpu {

constexpr int64_t LanczosScratch(int64_t rows, int64_t width) { return rows + 3 * width; }

// If the verdict is that M is not safe: sets its tridiagonal matrix to that of Lanczos's method for
// left^T right [width, width], a symmetric matrix with left and right [rows, width]. The largest
// eigenvalue of the one is about that of the other, from below.
//
// Cost: at most 64 products, in one block of threads.
void TridiagonalUnlessSafe(CUstream_st* stream, const double* left, const double* right,
                           int64_t rows, int64_t width, double* scratch, FactoredVerdict* verdict);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_LANCZOS_H_
