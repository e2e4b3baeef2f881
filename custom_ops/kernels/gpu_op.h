// SPDX-License-Identifier: Apache-2.0
//
// The common start and end of all ops on a GPU.

#ifndef TFX_LARGEOUT_KERNELS_GPU_OP_H_
#define TFX_LARGEOUT_KERNELS_GPU_OP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/gpu/error.h"
#include "core/gpu/products.h"
#include "kernels/device_address.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "xla/stream_executor/stream.h"

struct CUstream_st;

namespace tfx {

// The status of a core::gpu error, with advice, and whether variables are unchanged.
absl::Status StatusOf(const core::gpu::Error& error);

// The final status of an op. If TensorFlow had no memory for it, adds the advice of StatusOf about
// memory.
// REQUIRES: the op changes no variable before it has all its memory.
absl::Status Explained(const absl::Status& status);

// An op whose calls may run concurrently.
class GpuOp : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    OP_REQUIRES_OK(context, Explained(Run(context)));
  }

 protected:
  // Checks the arguments and starts the work.
  virtual absl::Status Run(tensorflow::OpKernelContext* context) const = 0;
};

// The precision of products: bfloat16 if factors are to be `rounded`, else float32, or TF32 if this
// process has enabled it (Python: set_product_precision) at the time of the call.
inline core::gpu::Precision ProductPrecision(bool rounded) {
  if (rounded) return core::gpu::Precision::kBfloat16;
  return tensorflow::tensor_float_32_execution_enabled() ? core::gpu::Precision::kTf32
                                                         : core::gpu::Precision::kFloat32;
}

// The stream on which all ops of the device run one after another.
inline CUstream_st* StreamOf(tensorflow::OpKernelContext* context) {
  const auto handle = context->op_device_context()->stream()->platform_specific_handle();
  return static_cast<CUstream_st*>(handle.stream);
}

// Device memory, aligned to 16, for the work of the op.
inline absl::Status AllocateScratch(tensorflow::OpKernelContext* context, int64_t bytes,
                                    tensorflow::Tensor* scratch) {
  return context->allocate_temp(tensorflow::DT_INT8, {bytes}, scratch);
}

// Waits until the stream has reached this point, and for a copy from the device.
template <typename T>
absl::Status CopyToHost(tensorflow::OpKernelContext* context, const T* from, T* to) {
  auto* stream = context->op_device_context()->stream();
  const DeviceAddress source(const_cast<T*>(from), sizeof(T));
  absl::Status status = stream->Memcpy(to, source, sizeof(T));
  if (status.ok()) status = stream->BlockHostUntilDone();
  if (status.ok()) return status;
  const std::string text(status.message());
  return StatusOf({core::gpu::ErrorKind::kOther, text.c_str()});
}

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_GPU_OP_H_
