// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices on a GPU, in float32 throughout: never TF32.

#ifndef TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_
#define TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_

#include <cstdint>

struct CUstream_st;

namespace tfx::core::gpu {

// o = h W^T, all by rows: h [rows, width], W [columns, width], o [rows, columns]. Begins on a
// stream. Returns null, or what is wrong.
const char* ProductsOfRows(CUstream_st* stream, const float* h, const float* w, int64_t rows,
                           int64_t columns, int64_t width, float* o);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_PRODUCTS_H_
