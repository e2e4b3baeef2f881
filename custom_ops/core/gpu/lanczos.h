// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_GPU_LANCZOS_H_
#define TFX_LARGEOUT_CORE_GPU_LANCZOS_H_

#include <cstdint>

#include "core/gpu/factored_checks.h"

struct CUstream_st;

namespace tfx::core::gpu {

constexpr int64_t LanczosScratch(int64_t rows, int64_t width) { return rows + 3 * width; }

// If M is not safe by the verdict: sets its tridiagonal matrix to the one of Lanczos's method for
// left^T right [width, width], a symmetric matrix with left and right [rows, width]. Its largest
// eigenvalue approximates the matrix's from below.
//
// Cost: at most 64 products, in one block of threads.
void TridiagonalUnlessSafe(CUstream_st* stream, const double* left, const double* right,
                           int64_t rows, int64_t width, double* scratch, FactoredVerdict* verdict);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_LANCZOS_H_
