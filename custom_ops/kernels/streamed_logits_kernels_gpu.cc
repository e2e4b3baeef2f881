// SPDX-License-Identifier: Apache-2.0
//
// The op of streamed logits on a GPU. No file of kernels needs CUDA's compiler or headers.

#include <cstdint>

#include "core/gpu/streamed_logits.h"
#include "kernels/candidate_refusals_gpu.h"
#include "kernels/gpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/streamed_logits_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class StreamedLogitsGpuOp : public GpuOp {
 public:
  explicit StreamedLogitsGpuOp(tf::OpKernelConstruction* context)
      : GpuOp(context), call_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context) const override {
    TF_RETURN_IF_ERROR(CandidateRefusals::Earlier(context));  // of the last step before evaluation
    LockedVariables variables;
    core::StreamedLogitsInputs inputs;
    core::StreamedLogitsOutputs outputs;
    int64_t num_classes;
    TF_RETURN_IF_ERROR(call_.Get(context, &variables, &inputs, &num_classes));
    if (inputs.k > core::gpu::kMostBest) {
      return InvalidArgument("k must be at most ", core::gpu::kMostBest, " on a GPU; got ",
                             inputs.k);
    }
    const core::gpu::Precision precision = ProductPrecision(false);
    tf::Tensor scratch;
    const int64_t bytes = core::gpu::StreamedLogitsScratchBytes(inputs, precision);
    TF_RETURN_IF_ERROR(AllocateScratch(context, bytes, &scratch));
    TF_RETURN_IF_ERROR(call_.Allocate(context, inputs, &outputs));
    return StatusOf(
        core::gpu::StreamedLogits(StreamOf(context), inputs, precision, scratch.data(), outputs));
  }

 private:
  const StreamedLogitsCall call_;
};

REGISTER_KERNEL_BUILDER(Name("TfxStreamedLogits")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("first_class")
                            .HostMemory("class_stride")
                            .HostMemory("num_classes"),
                        StreamedLogitsGpuOp);
REGISTER_KERNEL_BUILDER(Name("TfxResourceStreamedLogits")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("kernel")
                            .HostMemory("first_class")
                            .HostMemory("class_stride")
                            .HostMemory("num_classes"),
                        StreamedLogitsGpuOp);

}  // namespace
}  // namespace tfx
