// SPDX-License-Identifier: Apache-2.0

#include "core/mean_of_rows.h"
#include "kernels/cpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class MeanOfRowsOp : public CpuOp {
 public:
  explicit MeanOfRowsOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, {"variable"}, LockedVariables::Mode::kShared));
    const tf::Tensor& rows = *variables.tensor(0);
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

 private:
  tf::DataType dtype_;
};

REGISTER_KERNEL_BUILDER(Name("TfxMeanOfRows").Device(tf::DEVICE_CPU), MeanOfRowsOp);

}  // namespace
}  // namespace tfx
