// SPDX-License-Identifier: Apache-2.0
//
// products.h where kernels run on the processor (cuda_on_cpu.h).

#include "core/gpu/products.h"

namespace tfx::core::gpu {

const char* ProductsOfRows(CUstream_st*, const float* h, const float* w, int64_t rows,
                           int64_t columns, int64_t width, float* o) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < columns; ++c) {
      float sum = 0;
      for (int64_t d = 0; d < width; ++d) sum += h[i * width + d] * w[c * width + d];
      o[i * columns + c] = sum;
    }
  }
  return nullptr;
}

const char* AddProduct(CUstream_st*, const Factor64& a, const Factor64& b, int64_t depth,
                       const ProductSum& c) {
  const auto at = [](const Factor64& f, int64_t i, int64_t j) {
    return f.is_transposed ? f.data[j * f.stride + i] : f.data[i * f.stride + j];
  };
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.columns; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += at(a, i, k) * at(b, k, j);
      double* to = c.data + i * c.stride + j;
      *to = c.alpha * sum + (c.beta == 0 ? 0 : c.beta * *to);
    }
  }
  return nullptr;
}

}  // namespace tfx::core::gpu
