// SPDX-License-Identifier: Apache-2.0
//
// products.h by cuBLAS, whose functions TensorFlow's library exports: nothing else is linked.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>
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

// What multiply(handle) returns, on a stream, as an error text.
template <typename Function>
const char* OnStream(CUstream_st* stream, const Function& multiply) {
  Handles& handles = TheHandles();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  cublasHandle_t handle;
  cublasStatus_t status = Get(&handles, &handle);
  if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetStream(handle, stream);
  if (status == CUBLAS_STATUS_SUCCESS) status = multiply(handle);
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : cublasGetStatusString(status);
}

cublasOperation_t OperationOf(const Factor64& factor) {
  return factor.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

// How far rows are apart as cuBLAS takes it: at least 1, also where they are empty.
int StrideOf(const Factor64& factor) { return std::max(1, static_cast<int>(factor.stride)); }

}  // namespace

// cuBLAS goes by columns: the transpose of a product is that of the transposes, the other way
// round.

const char* ProductsOfRows(CUstream_st* stream, const float* h, const float* w, int64_t rows,
                           int64_t columns, int64_t width, float* o) {
  return OnStream(stream, [=](cublasHandle_t handle) {
    const float one = 1, zero = 0;
    const auto m = static_cast<int>(columns), n = static_cast<int>(rows);
    const auto depth = static_cast<int>(width);
    return cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, depth, &one, w, depth, h, depth,
                       &zero, o, m);
  });
}

const char* AddProduct(CUstream_st* stream, const Factor64& a, const Factor64& b, int64_t depth,
                       const ProductSum& c) {
  if (c.rows == 0 || c.columns == 0) return nullptr;
  return OnStream(stream, [&](cublasHandle_t handle) {
    return cublasDgemm(handle, OperationOf(b), OperationOf(a), static_cast<int>(c.columns),
                       static_cast<int>(c.rows), static_cast<int>(depth), &c.alpha, b.data,
                       StrideOf(b), a.data, StrideOf(a), &c.beta, c.data,
                       static_cast<int>(c.stride));
  });
}

}  // namespace tfx::core::gpu
