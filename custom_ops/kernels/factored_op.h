// SPDX-License-Identifier: Apache-2.0
//
// What ops on a factored layer share.

#ifndef TFX_LARGEOUT_KERNELS_FACTORED_OP_H_
#define TFX_LARGEOUT_KERNELS_FACTORED_OP_H_

#include "core/dense_execution.h"
#include "core/factored_state.h"
#include "kernels/cpu_op.h"
#include "kernels/factored_arguments.h"
#include "kernels/factored_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Below, a second thread costs more than it saves.
constexpr double kSmallFlop = 2e6;

// An op on a factored layer, whose variables it locks.
template <typename T>
class FactoredOp : public CpuOp {
 public:
  using CpuOp::CpuOp;

 protected:
  // Whether a call changes variables.
  virtual bool Updates() const = 0;

  virtual absl::Status Run(tensorflow::OpKernelContext* context, FactoredVariables<T>& variables,
                           const core::DenseExecution<T>& execution) const = 0;

  absl::Status Run(tensorflow::OpKernelContext* context, core::Execution execution) const final {
    FactoredVariables<T> variables;
    TF_RETURN_IF_ERROR(variables.Lock(
        context, Updates() ? LockedVariables::Mode::kExclusive : LockedVariables::Mode::kShared));
    if (IsSmall(context, variables.State().width)) execution.num_workers = 1;
    return Run(context, variables, core::DenseExecution<T>(execution));
  }

 private:
  static bool IsSmall(tensorflow::OpKernelContext* context, int64_t width) {
    double flop = 2.0 * width * width;
    if (context->num_inputs() > kFirstInput && context->input(kFirstInput).dims() > 0) {
      flop *= context->input(kFirstInput).dim_size(0);
    }
    return flop < kSmallFlop;
  }
};

#define TFX_REGISTER_FACTORED_OF(OP, T) \
  REGISTER_KERNEL_BUILDER(              \
      Name("Tfx" #OP).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("dtype"), OP##Op<T>)
#define TFX_REGISTER_FACTORED(OP)      \
  TFX_REGISTER_FACTORED_OF(OP, float); \
  TFX_REGISTER_FACTORED_OF(OP, double)

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_FACTORED_OP_H_
