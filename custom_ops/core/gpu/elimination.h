// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_GPU_ELIMINATION_H_
#define TFX_LARGEOUT_CORE_GPU_ELIMINATION_H_

#include <cstdint>

#include "core/gpu/error.h"

struct CUstream_st;

namespace tfx::core::gpu {

// How many rows Eliminate takes at a time.
constexpr int64_t kPanel = 32;

// How many numbers of scratch Eliminate needs.
constexpr int64_t EliminationScratch(int64_t n, int64_t columns) {
  return kPanel * (kPanel + n + columns);
}

// Turns [A | B] by rows, A [n, n] and B [n, columns], into [garbage | A^-1 B]: Gauss and Jordan's
// elimination by panels, without exchanges of rows. Sets *is_safe to 0, and leaves it as it is
// otherwise, if a pivot of A = L R is not within [kLeastPivot, kMostPivot]; B is garbage then. For
// A = I - K diag(s), with s > 0 and K positive semidefinite, pivots are above 0 if and only if the
// eigenvalues of K diag(s) are below 1.
//
// Begins on a stream. Returns what is wrong.
Error Eliminate(CUstream_st* stream, int64_t n, int64_t columns, double* scratch, double* ab,
                int* is_safe);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_ELIMINATION_H_
