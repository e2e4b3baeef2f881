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

}  // namespace tfx::core::gpu
