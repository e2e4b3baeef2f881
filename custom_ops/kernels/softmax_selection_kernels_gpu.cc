// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>

#include "core/gpu/softmax_selection.h"
#include "kernels/gpu_op.h"
#include "kernels/softmax_selection_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;
using core::gpu::SoftmaxSelectionSizes;

// The host waits once, for how many entries are kept, which is a dimension of the outputs; not
// where none is to be kept. Numbers and labels are not looked at: who calls the op has checked
// them.
class SoftmaxSelectionGpuOp : public GpuOp {
 public:
  explicit SoftmaxSelectionGpuOp(tf::OpKernelConstruction* context)
      : GpuOp(context), call_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context) const override {
    SoftmaxSelectionArguments arguments;
    TF_RETURN_IF_ERROR(call_.Get(context, &arguments));
    const core::StreamedLogitsOutputs& outputs = arguments.outputs;
    core::gpu::SoftmaxSelectionInputs inputs = {arguments.inputs,
                                                arguments.seed->flat<int64_t>().data(),
                                                ProductPrecision(arguments.inputs.rounds)};
    inputs.layer.keep = arguments.rule.num_expected == 0 ? nullptr : &arguments.rule;
    tf::Tensor scratch, sizes_on_device;
    TF_RETURN_IF_ERROR(AllocateScratch(context, sizeof(SoftmaxSelectionSizes), &sizes_on_device));
    auto* on_device = static_cast<SoftmaxSelectionSizes*>(sizes_on_device.data());
    int64_t room = core::gpu::RoomForEntries(inputs);
    SoftmaxSelectionSizes sizes = {0, 0};
    for (bool is_first = true; is_first || sizes.room > room; is_first = false) {
      room = std::max(room, sizes.room);
      const int64_t bytes = core::gpu::SoftmaxSelectionScratchBytes(inputs, room);
      TF_RETURN_IF_ERROR(AllocateScratch(context, bytes, &scratch));
      TF_RETURN_IF_ERROR(StatusOf(
          core::gpu::SoftmaxSelection(StreamOf(context), inputs, room, is_first, scratch.data(),
                                      {outputs.logsumexp, outputs.target_logits, on_device})));
      if (room > 0) TF_RETURN_IF_ERROR(CopyToHost(context, on_device, &sizes));
    }
    core::gpu::SoftmaxSelectionEntries entries;
    TF_RETURN_IF_ERROR(Allocate(context, inputs.layer.batch, sizes.most_kept, &entries));
    return StatusOf(core::gpu::WriteEntries(StreamOf(context), inputs, room, scratch.data(),
                                            outputs.logsumexp, entries));
  }

 private:
  static absl::Status Allocate(tf::OpKernelContext* context, int64_t batch, int64_t most,
                               core::gpu::SoftmaxSelectionEntries* entries) {
    tf::Tensor *ids, *weights, *logits, *keys;
    TF_RETURN_IF_ERROR(context->allocate_output(2, {batch, most}, &ids));
    TF_RETURN_IF_ERROR(context->allocate_output(3, {batch, most}, &weights));
    TF_RETURN_IF_ERROR(context->allocate_output(4, {batch, most}, &logits));
    TF_RETURN_IF_ERROR(context->allocate_output(5, {batch, most}, &keys));
    *entries = {most, ids->flat<int64_t>().data(), weights->flat<float>().data(),
                logits->flat<float>().data(), keys->flat<float>().data()};
    return absl::OkStatus();
  }

  const SoftmaxSelectionCall call_;
};

REGISTER_KERNEL_BUILDER(Name("TfxSoftmaxSelection")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("kernel")
                            .HostMemory("bias")
                            .HostMemory("first_class")
                            .HostMemory("class_stride")
                            .HostMemory("num_classes"),
                        SoftmaxSelectionGpuOp);

}  // namespace
}  // namespace tfx
