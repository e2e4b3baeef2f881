// SPDX-License-Identifier: Apache-2.0

#include <cstdint>

#include "core/streamed_logits.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/streamed_logits_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

template <typename T>
absl::Status RunStreamedLogits(tf::OpKernelContext* context, const tf::Tensor& kernel, int64_t k,
                               const core::Execution& execution) {
  core::StreamedLogitsInputs inputs;
  core::StreamedLogitsOutputs outputs;
  int64_t num_classes;
  TF_RETURN_IF_ERROR(ReadStreamedLogits<T>(context, kernel, k, &inputs, &num_classes));
  TF_RETURN_IF_ERROR(CheckLabels(context->input(3), num_classes, execution.rows));
  TF_RETURN_IF_ERROR(AllocateStreamedLogits(context, inputs, &outputs));
  core::StreamedLogits(inputs, execution, outputs);
  return absl::OkStatus();
}

template <typename T>
absl::Status ComputeOnCpu(tf::OpKernelContext* context, const tf::Tensor& kernel, int64_t k) {
  return RunOnCpu(context, [&](const core::Execution& execution) {
    return RunStreamedLogits<T>(context, kernel, k, execution);
  });
}

#define TFX_REGISTER(T)                                                                    \
  REGISTER_KERNEL_BUILDER(                                                                 \
      Name("TfxStreamedLogits").Device(tf::DEVICE_CPU).TypeConstraint<T>("dtype"),         \
      StreamedLogitsOp<ComputeOnCpu<T>>);                                                  \
  REGISTER_KERNEL_BUILDER(                                                                 \
      Name("TfxResourceStreamedLogits").Device(tf::DEVICE_CPU).TypeConstraint<T>("dtype"), \
      ResourceStreamedLogitsOp<ComputeOnCpu<T>>)

TFX_REGISTER(float);
TFX_REGISTER(tf::bfloat16);
#undef TFX_REGISTER

}  // namespace
}  // namespace tfx
