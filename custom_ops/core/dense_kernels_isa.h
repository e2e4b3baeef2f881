// SPDX-License-Identifier: Apache-2.0
//
// Products of dense matrices, and a factorization, at the size that fits a processor's caches. They
// are compiled once per instruction set and run on the calling thread.
//
// The right factor B [depth, columns] of a product is given by rows, or in panels of `panel_width`
// columns, each [depth, panel_width], one after the other; the last is padded with 0. Panels are
// faster if they are read many times, or if B is the transpose of a stored matrix.

#ifndef TFX_LARGEOUT_CORE_DENSE_KERNELS_ISA_H_
#define TFX_LARGEOUT_CORE_DENSE_KERNELS_ISA_H_

#include <stdint.h>

#include "core/for_sets.h"

namespace tfx::core {

// C <- beta C + alpha A B.
template <typename T>
struct Product {
  const T* a;  // A[i, k] = a[i * a_row + k * a_column]
  int64_t a_row;
  int64_t a_column;
  const T* b;  // B in panels, or B[k, j] = b[k * b_row + j] if b_row is not 0
  int64_t depth;
  int64_t columns;
  T* c;  // C[i, j] = c[i * c_row + j]
  int64_t c_row;
  T alpha;
  T beta;  // 0: C need not be initialized
  int64_t b_row = 0;
};

// X = I - K diag(s) with a symmetric K [n, n], factored as X = L R, with L unit lower and R upper
// triangular. With s_j > 0 and K positive semidefinite it exists if and only if the eigenvalues of
// K diag(s) are below 1.
template <typename T>
struct Factorization {
  int64_t size;
  T* k;         // [n, n], row-major; only the lower triangle is read; overwritten
  const T* s;   // [n]
  T min_pivot;  // Factor gives up at a pivot R_jj outside of these bounds
  T max_pivot;
  T* pivots;   // [n]: R_jj
  T* lower;    // [n, n]: I - L, below the diagonal
  T* upper;    // [n, n]: I - diag(pivots)^-1 R, above the diagonal
  T* scratch;  // room for FactorScratch(n)
};

template <typename T>
struct DenseKernels {
  int64_t panel_width;
  int64_t tile_rows;  // the best multiple of rows to process

  // Rows [begin, end) of C. With `lower`, only C[i, j] with j < end; values above the diagonal are
  // then undefined.
  // REQUIRES: c overlaps neither a nor b.
  void (*multiply)(const Product<T>& product, int64_t begin, int64_t end, bool lower);

  // Puts rows [begin, end) of B [depth, columns], b[k * b_row + j], into panels.
  void (*pack)(const T* b, int64_t b_row, int64_t depth, int64_t columns, int64_t begin,
               int64_t end, T* panels);

  // Puts panels [begin, end) of B = X^T, X [columns, depth] as x[j * x_row + k], into panels.
  void (*pack_transposed)(const T* x, int64_t x_row, int64_t depth, int64_t columns, int64_t begin,
                          int64_t end, T* panels);

  // to[j * to_row + i] = from[i * from_row + j] for i < rows, j < columns.
  void (*transpose)(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to,
                    int64_t to_row);

  // Elements of Factorization::scratch.
  int64_t (*factor_scratch)(int64_t size);

  // Returns false, at the first pivot out of bounds or NaN.
  // Cost: n^3 / 3 multiplications.
  bool (*factor)(const Factorization<T>& factorization);

  // Overwrites a panel [n, panel_width] B with X^-1 B.
  // REQUIRES: factor returned true.
  void (*solve)(const Factorization<T>& factorization, T* panel);

  // The inner product of n numbers.
  T (*dot)(const T* x, const T* y, int64_t n);

  // y += a x.
  void (*add)(T a, const T* x, int64_t n, T* y);

  // Whether none of n numbers is infinite or NaN.
  bool (*all_finite)(const T* x, int64_t n);
};

TFX_FOR_SETS(extern const DenseKernels<float> kFloatKernels)
TFX_FOR_SETS(extern const DenseKernels<double> kDoubleKernels)

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_DENSE_KERNELS_ISA_H_
