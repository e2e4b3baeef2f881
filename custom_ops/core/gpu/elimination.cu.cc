// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/elimination.h"

#include <algorithm>

#include "core/factored_update.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/products.h"

namespace tfx::core::gpu {
namespace {

constexpr int kSize = static_cast<int>(kPanel);
constexpr int kBoth = 2 * kSize;  // columns of [block | inverse]

// A block A_kk [size, size] of rows `stride` apart: writes its inverse, by rows of kPanel, and puts
// A_kk - I in its place. One block of threads.
__global__ void __launch_bounds__(kThreads)
    InvertBlock(double* block, int64_t stride, int size, double* inverse, int* is_safe) {
  TFX_SHARED_MEMORY(memory);
  double* both = reinterpret_cast<double*>(memory);  // [kSize, kBoth]
  double* factors = both + kSize * kBoth;            // [kSize]
  for (int at = threadIdx.x; at < kSize * kBoth; at += kThreads) {
    const int i = at / kBoth, j = at % kBoth;
    const bool is_inside = i < size && j < size;
    both[at] = is_inside ? block[i * stride + j] : j % kSize == i ? 1 : 0;
  }
  bool is_good = true;
  for (int k = 0; k < size; ++k) {
    __syncthreads();
    if (threadIdx.x < kSize) factors[threadIdx.x] = both[threadIdx.x * kBoth + k];
    __syncthreads();
    const double pivot = factors[k];
    is_good = is_good && pivot >= kLeastPivot && pivot <= kMostPivot;
    if (threadIdx.x < kBoth) both[k * kBoth + threadIdx.x] /= pivot;
    __syncthreads();
    for (int at = threadIdx.x; at < kSize * kBoth; at += kThreads) {
      const int i = at / kBoth, j = at % kBoth;
      if (i != k) both[at] -= factors[i] * both[k * kBoth + j];
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < kSize * kSize; at += kThreads) {
    const int i = at / kSize, j = at % kSize;
    inverse[at] = both[i * kBoth + kSize + j];
    if (i == j && i < size) block[i * stride + j] -= 1;
  }
  if (threadIdx.x == 0 && !is_good) *is_safe = 0;
}

}  // namespace

Error Eliminate(CUstream_st* stream, int64_t n, int64_t columns, double* scratch, double* ab,
                int* is_safe) {
  const int64_t stride = n + columns;
  double *inverse = scratch, *panel = scratch + kPanel * kPanel;
  for (int64_t k = 0; k < n; k += kPanel) {
    const int64_t size = std::min(kPanel, n - k), right = k + size, width = stride - right;
    double* rows = ab + k * stride;
    TFX_LAUNCH(InvertBlock, dim3(1), dim3(kThreads), (kSize * kBoth + kSize) * sizeof(double),
               stream, rows + k, stride, static_cast<int>(size), inverse, is_safe);
    // The panel X becomes A_kk^-1 X, other rows lose A_ik A_kk^-1 X. The former is the latter with
    // A_kk - I instead of A_ik.
    Error error = AddProduct(stream, {inverse, kPanel}, {rows + right, stride}, size,
                             {panel, width, size, width});
    if (!error.ok()) return error;
    error = AddProduct(stream, {ab + k, stride}, {panel, width}, size,
                       {ab + right, stride, n, width, -1, 1});
    if (!error.ok()) return error;
  }
  return LastError();
}

}  // namespace tfx::core::gpu
