// SPDX-License-Identifier: Apache-2.0
//
// products.h where kernels run on the processor (cuda_on_cpu.h).

#include "core/gpu/products.h"

namespace tfx::core::gpu {
namespace {

// A matrix by rows, or its transpose.
struct Factor {
  float At(int64_t row, int64_t column) const {
    return is_transposed ? numbers[column * length + row] : numbers[row * length + column];
  }

  const float* numbers;
  int64_t length;  // of its rows in memory
  bool is_transposed;
};

const char* Multiply(const Factor& a, const Factor& b, int64_t rows, int64_t columns, int64_t inner,
                     float* o) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (int64_t d = 0; d < inner; ++d) sum += a.At(i, d) * b.At(d, j);
      o[i * columns + j] = sum;
    }
  }
  return nullptr;
}

}  // namespace

const char* ProductsOfRows(CUstream_st*, const float* h, const float* w, int64_t rows,
                           int64_t columns, int64_t width, float* o) {
  return Multiply({h, width, false}, {w, width, true}, rows, columns, width, o);
}

const char* ProductsWithRows(CUstream_st*, const float* g, const float* w, int64_t rows,
                             int64_t columns, int64_t inner, float* o) {
  return Multiply({g, inner, false}, {w, columns, false}, rows, columns, inner, o);
}

const char* ProductsOfColumns(CUstream_st*, const float* g, const float* h, int64_t rows,
                              int64_t columns, int64_t inner, float* o) {
  return Multiply({g, rows, true}, {h, columns, false}, rows, columns, inner, o);
}

}  // namespace tfx::core::gpu
