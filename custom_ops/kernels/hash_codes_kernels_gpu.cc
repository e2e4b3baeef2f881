// SPDX-License-Identifier: Apache-2.0
//
// The codes of vectors on a GPU. The host waits once, for the faults.

#include "core/gpu/hash_codes.h"
#include "kernels/gpu_op.h"
#include "kernels/hash_arguments.h"
#include "kernels/hash_faults_gpu.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class HashCodesGpuOp : public GpuOp {
 public:
  explicit HashCodesGpuOp(tf::OpKernelConstruction* context)
      : GpuOp(context), functions_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context) const override {
    const tf::Tensor& vectors = context->input(0);
    TF_RETURN_IF_ERROR(CheckVectors(vectors));
    const int64_t n = vectors.dim_size(0), width = vectors.dim_size(1);
    core::HashFamily family;
    TF_RETURN_IF_ERROR(functions_.Get(context->input(1), context->input(2), width, &family));
    tf::Tensor *codes, memory;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {n, family.num_tables}, &codes));
    TF_RETURN_IF_ERROR(AllocateScratch(context, Take(family, n, nullptr).bytes, &memory));
    const Scratch scratch = Take(family, n, memory.data());
    core::gpu::ClearFaults(StreamOf(context), scratch.faults);
    const core::LayerWeights rows = {vectors.data(), nullptr, false, n, width};
    TF_RETURN_IF_ERROR(StatusOf(core::gpu::HashCodes(
        StreamOf(context), family, 0, family.num_tables, {rows, nullptr, n}, scratch.memory,
        {codes->flat<int32_t>().data(), family.num_tables, 1}, scratch.faults)));
    core::gpu::HashFaults faults;
    TF_RETURN_IF_ERROR(CopyToHost(context, scratch.faults, &faults));
    TF_RETURN_IF_ERROR(CheckElement(context, family, faults));
    return faults.row == core::gpu::kNoFault ? absl::OkStatus() : VectorError(faults.row);
  }

 private:
  struct Scratch {
    core::gpu::HashFaults* faults;
    core::gpu::HashMemory memory;
    int64_t bytes;
  };

  static Scratch Take(const core::HashFamily& family, int64_t n, void* data) {
    core::gpu::Scratch dealt(data);
    auto* faults = dealt.Take<core::gpu::HashFaults>(1);
    const auto memory = core::gpu::TakeHashMemory(family, 0, family.num_tables, n, &dealt);
    return {faults, memory, dealt.bytes()};
  }

  const HashFunctions functions_;
};

REGISTER_KERNEL_BUILDER(Name("TfxHashCodes").Device(tf::DEVICE_GPU), HashCodesGpuOp);

}  // namespace
}  // namespace tfx
