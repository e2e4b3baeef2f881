// SPDX-License-Identifier: Apache-2.0
//
// products.h by cuBLAS, whose functions TensorFlow's library exports: nothing else is linked.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "core/gpu/products.h"

namespace tfx::core::gpu {
namespace {

// A handle of each device, never destroyed: the driver may be gone before this library. Its use is
// guarded, since the stream is a part of it.
struct Handles {
  std::mutex mutex;
  std::map<int, cublasHandle_t> of_device;
};

Handles& TheHandles() {
  static auto* handles = new Handles;
  return *handles;
}

cublasStatus_t Get(Handles* handles, cublasHandle_t* handle) {
  int device;
  if (cudaGetDevice(&device) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  const auto found = handles->of_device.find(device);
  if (found != handles->of_device.end()) {
    *handle = found->second;
    return CUBLAS_STATUS_SUCCESS;
  }
  cublasStatus_t status = cublasCreate(handle);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasSetMathMode(*handle, CUBLAS_PEDANTIC_MATH);
    handles->of_device[device] = *handle;
  }
  return status;
}

// A matrix by rows, or its transpose.
struct Factor {
  const float* numbers;
  int64_t length;  // of its rows in memory
  bool is_transposed;
};

// o [rows, columns] = a b, with sums of `inner` terms.
const char* Multiply(CUstream_st* stream, const Factor& a, const Factor& b, int64_t rows,
                     int64_t columns, int64_t inner, float* o) {
  if (rows == 0 || columns == 0) return nullptr;
  if (inner == 0) {
    const size_t bytes = static_cast<size_t>(rows * columns) * sizeof(float);
    const cudaError_t error = cudaMemsetAsync(o, 0, bytes, stream);
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  }
  Handles& handles = TheHandles();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  cublasHandle_t handle;
  cublasStatus_t status = Get(&handles, &handle);
  if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetStream(handle, stream);
  if (status == CUBLAS_STATUS_SUCCESS) {
    // cuBLAS goes by columns: o^T = b^T a^T.
    const auto operation = [](const Factor& factor) {
      return factor.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    };
    const float one = 1, zero = 0;
    status = cublasSgemm(handle, operation(b), operation(a), static_cast<int>(columns),
                         static_cast<int>(rows), static_cast<int>(inner), &one, b.numbers,
                         static_cast<int>(b.length), a.numbers, static_cast<int>(a.length), &zero,
                         o, static_cast<int>(columns));
  }
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : cublasGetStatusString(status);
}

}  // namespace

const char* ProductsOfRows(CUstream_st* stream, const float* h, const float* w, int64_t rows,
                           int64_t columns, int64_t width, float* o) {
  return Multiply(stream, {h, width, false}, {w, width, true}, rows, columns, width, o);
}

const char* ProductsWithRows(CUstream_st* stream, const float* g, const float* w, int64_t rows,
                             int64_t columns, int64_t inner, float* o) {
  return Multiply(stream, {g, inner, false}, {w, columns, false}, rows, columns, inner, o);
}

const char* ProductsOfColumns(CUstream_st* stream, const float* g, const float* h, int64_t rows,
                              int64_t columns, int64_t inner, float* o) {
  return Multiply(stream, {g, rows, true}, {h, columns, false}, rows, columns, inner, o);
}

}  // namespace tfx::core::gpu
