// SPDX-License-Identifier: Apache-2.0
//
// The op of streamed logits on a GPU. No file of kernels needs CUDA's compiler or headers.

#include <cstdint>

#include "core/gpu/streamed_logits.h"
#include "kernels/candidate_refusals_gpu.h"
#include "kernels/gpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/product_precision.h"
#include "kernels/streamed_logits_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

template <typename T>
absl::Status Run(tf::OpKernelContext* context, const tf::Tensor& kernel, int64_t k) {
  core::StreamedLogitsInputs inputs;
  core::StreamedLogitsOutputs outputs;
  int64_t num_classes;
  TF_RETURN_IF_ERROR(ReadStreamedLogits<T>(context, kernel, k, &inputs, &num_classes));
  if (k > core::gpu::kMostBest) {
    return InvalidArgument("k must be at most ", core::gpu::kMostBest, " on a GPU; got ", k);
  }
  const core::gpu::Precision precision = ProductPrecision(false);
  tf::Tensor scratch;
  const int64_t bytes = core::gpu::StreamedLogitsScratchBytes(inputs, precision);
  TF_RETURN_IF_ERROR(AllocateScratch(context, bytes, &scratch));
  TF_RETURN_IF_ERROR(AllocateStreamedLogits(context, inputs, &outputs));
  return StatusOf(
      core::gpu::StreamedLogits(StreamOf(context), inputs, precision, scratch.data(), outputs));
}

template <typename T>
absl::Status ComputeOnGpu(tf::OpKernelContext* context, const tf::Tensor& kernel, int64_t k) {
  TF_RETURN_IF_ERROR(CandidateRefusals::Earlier(context));  // of the last step before evaluation
  return Explained(Run<T>(context, kernel, k));
}

#define REGISTER(T)                                           \
  REGISTER_KERNEL_BUILDER(Name("TfxStreamedLogits")           \
                              .Device(tf::DEVICE_GPU)         \
                              .TypeConstraint<T>("dtype")     \
                              .HostMemory("first_class")      \
                              .HostMemory("class_stride")     \
                              .HostMemory("num_classes"),     \
                          StreamedLogitsOp<ComputeOnGpu<T>>); \
  REGISTER_KERNEL_BUILDER(Name("TfxResourceStreamedLogits")   \
                              .Device(tf::DEVICE_GPU)         \
                              .TypeConstraint<T>("dtype")     \
                              .HostMemory("kernel")           \
                              .HostMemory("first_class")      \
                              .HostMemory("class_stride")     \
                              .HostMemory("num_classes"),     \
                          ResourceStreamedLogitsOp<ComputeOnGpu<T>>)
REGISTER(float);
REGISTER(tf::bfloat16);
#undef REGISTER

}  // namespace
}  // namespace tfx
