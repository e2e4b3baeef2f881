// SPDX-License-Identifier: Apache-2.0

#include <string>

#include "core/instruction_set.h"
#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class InstructionSetOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    core::InstructionSet set;
    std::string error;
    OP_REQUIRES(context, core::ChooseInstructionSet(&set, &error), InvalidArgument(error));
    tf::Tensor* name = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &name));
    name->scalar<tf::tstring>()() = core::InstructionSetName(set);
  }
};

REGISTER_KERNEL_BUILDER(Name("TfxInstructionSet").Device(tf::DEVICE_CPU), InstructionSetOp);

}  // namespace
}  // namespace tfx
