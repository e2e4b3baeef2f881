// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_GPU_ELIMINATION_H_
#define TFX_LARGEOUT_CORE_GPU_ELIMINATION_H_

#include <cstdint>

#include "core/gpu/error.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The number of rows that Eliminate processes at a time.
constexpr int64_t kPanel = 32;

// The number of scratch numbers that Eliminate needs.
constexpr int64_t EliminationScratch(int64_t n, int64_t columns) {
  return kPanel * (kPanel + n + columns);
}

// Turns [A | B] by rows, A [n, n] and B [n, columns], into [garbage | A^-1 B]: Gauss-Jordan
// elimination by panels, without pivoting. Sets *is_safe to 0 if a pivot of A = L R is not within
// [kLeastPivot, kMostPivot] (B is then garbage); otherwise does not change it. For A = I - K
// diag(s), with s > 0 and K positive semidefinite, pivots are above 0 if and only if the
// eigenvalues of K diag(s) are below 1.
//
// Runs on a stream. Returns an error.
Error Eliminate(CUstream_st* stream, int64_t n, int64_t columns, double* scratch, double* ab,
                int* is_safe);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_ELIMINATION_H_
