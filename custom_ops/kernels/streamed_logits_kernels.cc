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

class StreamedLogitsOp : public CpuOp {
 public:
  explicit StreamedLogitsOp(tf::OpKernelConstruction* context) : CpuOp(context), call_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    LockedVariables variables;
    core::StreamedLogitsInputs inputs;
    core::StreamedLogitsOutputs outputs;
    int64_t num_classes;
    TF_RETURN_IF_ERROR(call_.Get(context, &variables, &inputs, &num_classes));
    TF_RETURN_IF_ERROR(CheckLabels(context->input(3), num_classes, execution.rows));
    TF_RETURN_IF_ERROR(call_.Allocate(context, inputs, &outputs));
    core::StreamedLogits(inputs, execution, outputs);
    return absl::OkStatus();
  }

 private:
  const StreamedLogitsCall call_;
};

REGISTER_KERNEL_BUILDER(Name("TfxStreamedLogits").Device(tf::DEVICE_CPU), StreamedLogitsOp);
REGISTER_KERNEL_BUILDER(Name("TfxResourceStreamedLogits").Device(tf::DEVICE_CPU), StreamedLogitsOp);

}  // namespace
}  // namespace tfx
