// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/softmax_update.h"
#include "kernels/gpu_op.h"
#include "kernels/locked_variables.h"
#include "kernels/softmax_update_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// The host waits for nothing. Numbers, labels and the learning rate are not looked at: who calls
// the op has checked them.
class SoftmaxUpdateGpuOp : public GpuOp {
 public:
  explicit SoftmaxUpdateGpuOp(tf::OpKernelConstruction* context) : GpuOp(context) {
    OP_REQUIRES_OK(context, arguments_.ReadAttributes(context));
  }

 protected:
  using Arguments = SoftmaxUpdateArguments;

  absl::Status Run(tf::OpKernelContext* context) const override {
    Arguments arguments = arguments_;
    LockedVariables variables;
    TF_RETURN_IF_ERROR(arguments.Lock(context, &variables));
    tf::Tensor scratch, *hidden_gradient;
    const tf::Tensor& hidden = context->input(variables.size());
    TF_RETURN_IF_ERROR(context->allocate_output(0, hidden.shape(), &hidden_gradient));
    const tf::Tensor& rate = Arguments::Get(context, variables, Arguments::kLearningRate);
    const auto rule = arguments.RuleOnGpu(rate.flat<float>().data());
    core::gpu::SoftmaxUpdateInputs inputs = {};
    inputs.weights = arguments.layer().Weights(variables);
    inputs.batch = arguments.Batch(context, variables);
    inputs.updates = rule.has_value();
    if (inputs.updates) inputs.rule = *rule;
    inputs.precision = ProductPrecision(arguments.rounds());
    const int64_t bytes = core::gpu::SoftmaxUpdateScratchBytes(inputs);
    TF_RETURN_IF_ERROR(AllocateScratch(context, bytes, &scratch));
    TF_RETURN_IF_ERROR(arguments.Own(&variables));
    inputs.weights = arguments.layer().Weights(variables);
    inputs.rows = arguments.Rows(variables);
    return StatusOf(core::gpu::SoftmaxUpdate(StreamOf(context), inputs, scratch.data(),
                                             hidden_gradient->flat<float>().data()));
  }

 private:
  Arguments arguments_;  // the attributes
};

REGISTER_KERNEL_BUILDER(Name("TfxSoftmaxUpdate")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("kernel")
                            .HostMemory("bias")
                            .HostMemory("kernel_slots")
                            .HostMemory("bias_slots")
                            .HostMemory("rule"),
                        SoftmaxUpdateGpuOp);

}  // namespace
}  // namespace tfx
