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
    status = cublasSetMathMode(*handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (status == CUBLAS_STATUS_SUCCESS) {
      handles->of_device[device] = *handle;
    } else {
      cublasDestroy(*handle);
    }
  }
  return status;
}

ErrorKind KindOf(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return ErrorKind::kNone;
    case CUBLAS_STATUS_ALLOC_FAILED:
    case CUBLAS_STATUS_NOT_INITIALIZED:  // where there is no memory for its workspace
      return ErrorKind::kMemory;
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return ErrorKind::kNoCode;
    default:
      return ErrorKind::kOther;
  }
}

// The status of multiply(handle) on a stream, as an error. cuBLAS stores matrices by columns: the
// transpose of a product is the product of the transposed factors in reverse order.
template <typename Function>
Error OnStream(CUstream_st* stream, const Function& multiply) {
  Handles& handles = TheHandles();
  const std::lock_guard<std::mutex> lock(handles.mutex);
  cublasHandle_t handle;
  cublasStatus_t status = Get(&handles, &handle);
  if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetStream(handle, stream);
  if (status == CUBLAS_STATUS_SUCCESS) status = multiply(handle);
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {KindOf(status), cublasGetStatusString(status)};
}

Error ErrorOf(cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {ErrorKind::kOther, cudaGetErrorString(error)};
}

cublasOperation_t OperationOf(bool is_transposed) {
  return is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

// How far rows are apart as cuBLAS takes it: at least 1, also where they are empty.
int StrideOf(const Factor64& factor) { return std::max(1, static_cast<int>(factor.stride)); }

cublasComputeType_t ComputeTypeOf(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return CUBLAS_COMPUTE_32F_PEDANTIC;
    case Precision::kTf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case Precision::kBfloat16:
      break;
  }
  return CUBLAS_COMPUTE_32F;
}

}  // namespace

Error Multiply(CUstream_st* stream, Precision precision, const Factor& left, const Factor& right,
               int64_t rows, int64_t columns, int64_t depth, bool adds, float* product) {
  if (rows == 0 || columns == 0) return {};
  if (depth == 0) {
    if (adds) return {};
    const size_t bytes = static_cast<size_t>(rows * columns) * sizeof(float);
    return ErrorOf(cudaMemsetAsync(product, 0, bytes, stream));
  }
  return OnStream(stream, [&](cublasHandle_t handle) {
    const float one = 1, before = adds ? 1 : 0;
    const auto m = static_cast<int>(columns), n = static_cast<int>(rows);
    const auto k = static_cast<int>(depth);
    const cudaDataType_t type = precision == Precision::kBfloat16 ? CUDA_R_16BF : CUDA_R_32F;
    return cublasGemmEx(handle, OperationOf(right.is_transposed), OperationOf(left.is_transposed),
                        m, n, k, &one, right.numbers, type, right.is_transposed ? k : m,
                        left.numbers, type, left.is_transposed ? n : k, &before, product,
                        CUDA_R_32F, m, ComputeTypeOf(precision), CUBLAS_GEMM_DEFAULT);
  });
}

Error AddProduct(CUstream_st* stream, const Factor64& a, const Factor64& b, int64_t depth,
                 const ProductSum& c) {
  if (c.rows == 0 || c.columns == 0) return {};
  if (depth == 0) {
    if (c.beta != 0) return {};
    constexpr size_t kBytes = sizeof(double);
    return ErrorOf(cudaMemset2DAsync(c.data, static_cast<size_t>(c.stride) * kBytes, 0,
                                     static_cast<size_t>(c.columns) * kBytes,
                                     static_cast<size_t>(c.rows), stream));
  }
  return OnStream(stream, [&](cublasHandle_t handle) {
    return cublasDgemm(handle, OperationOf(b.is_transposed), OperationOf(a.is_transposed),
                       static_cast<int>(c.columns), static_cast<int>(c.rows),
                       static_cast<int>(depth), &c.alpha, b.data, StrideOf(b), a.data, StrideOf(a),
                       &c.beta, c.data, static_cast<int>(c.stride));
  });
}

}  // namespace tfx::core::gpu
