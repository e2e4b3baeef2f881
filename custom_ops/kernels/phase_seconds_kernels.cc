// SPDX-License-Identifier: Apache-2.0

#include <cstdint>

#include "core/phases.h"
#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class PhaseSecondsOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& record = context->input(0);
    OP_REQUIRES(context, record.dims() == 0,
                InvalidArgument("record must be a scalar; got rank ", record.dims()));
    const core::PhaseSeconds phases = core::TakePhaseSeconds(record.scalar<bool>()());
    tf::Tensor *names, *seconds;
    const tf::TensorShape shape({static_cast<int64_t>(phases.size())});
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &names));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &seconds));
    int64_t i = 0;
    for (const auto& [name, time] : phases) {
      names->vec<tf::tstring>()(i) = name;
      seconds->vec<double>()(i++) = time;
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("TfxPhaseSeconds").Device(tf::DEVICE_CPU), PhaseSecondsOp);

}  // namespace
}  // namespace tfx
