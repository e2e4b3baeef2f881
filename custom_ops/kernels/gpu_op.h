// SPDX-License-Identifier: Apache-2.0
//
// What an op on a GPU begins with.

#ifndef TFX_LARGEOUT_KERNELS_GPU_OP_H_
#define TFX_LARGEOUT_KERNELS_GPU_OP_H_

#include <cstdint>
#include <string>

#include "kernels/device_address.h"
#include "kernels/errors_gpu.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

struct CUstream_st;

namespace tfx {

// The stream on which all ops of the device run one after another.
inline CUstream_st* StreamOf(tensorflow::OpKernelContext* context) {
  const auto handle = context->op_device_context()->stream()->platform_specific_handle();
  return static_cast<CUstream_st*>(handle.stream);
}

// Memory of the device, aligned to 16, for what the op begins.
inline absl::Status AllocateScratch(tensorflow::OpKernelContext* context, int64_t bytes,
                                    tensorflow::Tensor* scratch) {
  return context->allocate_temp(tensorflow::DT_INT8, {bytes}, scratch);
}

// Waits until the stream has come to here, and for a copy of something on the device.
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
