// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/lanczos.h"

#include "core/gpu/block_reduction.h"
#include "core/gpu/launch_each.h"

namespace tfx::core::gpu {
namespace {

// y = left^T right x. `image` has room for a number per row. Called by all threads of a block.
__device__ void Multiply(const double* left, const double* right, int64_t rows, int64_t width,
                         const double* x, double* image, double* y) {
  __syncthreads();  // x is there
  for (int64_t i = threadIdx.x / kWarpSize; i < rows; i += kWarps) {
    double sum = 0;
    for (int64_t d = threadIdx.x % kWarpSize; d < width; d += kWarpSize) {
      sum += right[i * width + d] * x[d];
    }
    sum = OfWarp(sum, Sum());
    if (threadIdx.x % kWarpSize == 0) image[i] = sum;
  }
  __syncthreads();
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += left[i * width + d] * image[i];
    y[d] = sum;
  }
}

// As core::LargestEigenvalue, up to the tridiagonal matrix. One block of threads.
__global__ void __launch_bounds__(kThreads)
    Tridiagonal(const double* left, const double* right, int64_t rows, int64_t width,
                double* scratch, FactoredVerdict* verdict) {
  TFX_SHARED_MEMORY(memory);
  if (verdict->is_safe != 0) return;
  double *image = scratch, *x = image + rows, *before = x + width, *y = before + width;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    x[d] = 0.1 + static_cast<double>(static_cast<uint32_t>(d) * 2654435761u >> 8) / (1 << 24);
    before[d] = 0;
  }
  double norm = sqrt(Dot(x, x, width, memory)), scale = 0, last = 0;
  int step = 0;
  while (step < kMostLanczosSteps && step < width) {
    for (int64_t d = threadIdx.x; d < width; d += kThreads) x[d] /= norm;
    Multiply(left, right, rows, width, x, image, y);
    const double diagonal = Dot(x, y, width, memory);
    scale = fmax(scale, sqrt(Dot(y, y, width, memory)));
    for (int64_t d = threadIdx.x; d < width; d += kThreads) {
      const double rest = y[d] - diagonal * x[d] - last * before[d];
      before[d] = x[d];
      x[d] = rest;
    }
    norm = sqrt(Dot(x, x, width, memory));
    if (threadIdx.x == 0) {
      verdict->diagonal[step] = diagonal;
      verdict->beside[step] = norm;
    }
    last = norm;
    ++step;
    if (!(norm > 1e-12 * scale)) break;  // an invariant subspace; the same for all threads
  }
  if (threadIdx.x == 0) verdict->num_lanczos = step;
}

}  // namespace

void TridiagonalUnlessSafe(CUstream_st* stream, const double* left, const double* right,
                           int64_t rows, int64_t width, double* scratch, FactoredVerdict* verdict) {
  TFX_LAUNCH(Tridiagonal, dim3(1), dim3(kThreads), kWarps * sizeof(double), stream, left, right,
             rows, width, scratch, verdict);
}

}  // namespace tfx::core::gpu
