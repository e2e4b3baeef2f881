// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices on a GPU, in float32 throughout, never TF32, or in float64.

#ifndef TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_
#define TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_

#include <cstdint>

struct CUstream_st;

namespace tfx::core::gpu {

// o = h W^T, all by rows: h [rows, width], W [columns, width], o [rows, columns]. Begins on a
// stream. Returns null, or what is wrong.
const char* ProductsOfRows(CUstream_st* stream, const float* h, const float* w, int64_t rows,
                           int64_t columns, int64_t width, float* o);

// A factor of a product: a matrix by rows, which begin `stride` apart, or the transpose of one.
struct Factor64 {
  const double* data;
  int64_t stride;
  bool is_transposed = false;
};

// The matrix [rows, columns] that a product is added to: c = beta c + alpha a b. A beta of 0 needs
// no c before.
struct ProductSum {
  double* data;
  int64_t stride, rows, columns;
  double alpha = 1, beta = 0;
};

// a b with a [rows, depth] and b [depth, columns]. Begins on a stream. Returns null, or what is
// wrong.
const char* AddProduct(CUstream_st* stream, const Factor64& a, const Factor64& b, int64_t depth,
                       const ProductSum& c);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_
