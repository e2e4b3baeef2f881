// SPDX-License-Identifier: Apache-2.0

#include "core/mean_of_rows.h"
#include "kernels/cpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class MeanOfRowsOp : public tf::OpKernel {
 public:
  explicit MeanOfRowsOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  }

  void Compute(tf::OpKernelContext* context) override {
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context, {"variable"}, LockedVariables::Mode::kShared));
    core::Workspace workspace;
    OP_REQUIRES_OK(context, RunOnCpu(context, workspace, [&](const core::Execution& execution) {
                     return Run(context, *variables.tensor(0), execution);
                   }));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, const tf::Tensor& rows,
                   const core::Execution& execution) const {
    if (rows.dtype() != dtype_ || rows.dims() < 1 || rows.dim_size(0) < 1) {
      return InvalidArgument("variable must be ", tf::DataTypeString(dtype_),
                             " [C, ...] with C at least 1; got ", tf::DataTypeString(rows.dtype()),
                             " of shape ", rows.shape().DebugString());
    }
    tf::TensorShape shape = rows.shape();
    shape.RemoveDim(0);
    tf::Tensor* mean;
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &mean));
    core::MeanOfRows(rows.data(), dtype_ == tf::DT_BFLOAT16, rows.dim_size(0), shape.num_elements(),
                     execution, mean->flat<float>().data());
    return absl::OkStatus();
  }

  tf::DataType dtype_;
};

REGISTER_KERNEL_BUILDER(Name("TfxMeanOfRows").Device(tf::DEVICE_CPU), MeanOfRowsOp);

}  // namespace
}  // namespace tfx
