// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices on a GPU. A sum over nothing is 0.

#ifndef TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_
#define TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_

#include <cstdint>

#include "core/gpu/error.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The type of factors. With kTf32 they are float32 in memory, and rounded to 10 bits after the
// point when multiplied.
enum class Precision { kFloat32, kTf32, kBfloat16 };

struct Factor {
  const void* numbers;  // float, or bfloat16 for Precision::kBfloat16
  bool is_transposed;   // in memory
};

// product = left right, or product += left right, with sums in float32. All by rows: left [rows,
// depth], right [depth, columns]. Runs on a stream. Returns an error.
//
// The same arguments give the same bits on the same kind of device.
Error Multiply(CUstream_st* stream, Precision precision, const Factor& left, const Factor& right,
               int64_t rows, int64_t columns, int64_t depth, bool adds, float* product);

// A factor of a product: a matrix by rows with distance `stride`, or its transpose.
struct Factor64 {
  const double* data;
  int64_t stride;
  bool is_transposed = false;
};

// The matrix [rows, columns] to which a product is added: c = beta c + alpha a b. With beta = 0, c
// need not be initialized.
//
// REQUIRES: beta is 0 or 1 if the depth of the product is 0.
struct ProductSum {
  double* data;
  int64_t stride, rows, columns;
  double alpha = 1, beta = 0;
};

// The same in float64: a [rows, depth], b [depth, columns].
Error AddProduct(CUstream_st* stream, const Factor64& a, const Factor64& b, int64_t depth,
                 const ProductSum& c);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_
