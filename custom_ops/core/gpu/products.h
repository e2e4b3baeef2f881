// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices on a GPU, in float32 throughout: never TF32. All matrices are by rows. Each
// begins on a stream and returns null, or what is wrong. A sum over nothing is 0.

#ifndef TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_
#define TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_

#include <cstdint>

struct CUstream_st;

namespace tfx::core::gpu {

// o = h W^T: h [rows, width], W [columns, width], o [rows, columns].
const char* ProductsOfRows(CUstream_st* stream, const float* h, const float* w, int64_t rows,
                           int64_t columns, int64_t width, float* o);

// o = g W: g [rows, inner], W [inner, columns], o [rows, columns].
const char* ProductsWithRows(CUstream_st* stream, const float* g, const float* w, int64_t rows,
                             int64_t columns, int64_t inner, float* o);

// o = g^T h: g [inner, rows], h [inner, columns], o [rows, columns].
const char* ProductsOfColumns(CUstream_st* stream, const float* g, const float* h, int64_t rows,
                              int64_t columns, int64_t inner, float* o);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_
