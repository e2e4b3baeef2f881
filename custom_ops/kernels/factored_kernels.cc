// SPDX-License-Identifier: Apache-2.0

#include "core/factored_coordinates.h"
#include "core/factored_statistics.h"
#include "kernels/factored_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

template <typename T>
class FactoredStatisticsOp : public FactoredOp<T> {
 public:
  explicit FactoredStatisticsOp(tf::OpKernelConstruction* context) : FactoredOp<T>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("update_rows", &update_rows_));
  }

 protected:
  bool Updates() const override { return update_rows_; }

  absl::Status Run(tf::OpKernelContext* context, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) const override {
    const tf::Tensor& hidden = context->input(kFirstInput);
    const tf::Tensor& labels = context->input(kFirstInput + 1);
    TF_RETURN_IF_ERROR(variables.CheckBatch(hidden, labels, execution));
    core::FactoredStatisticsOutputs<T> outputs;
    TF_RETURN_IF_ERROR(AllocateFactoredStatistics(context, hidden, labels, &outputs));
    if (update_rows_) TF_RETURN_IF_ERROR(variables.OwnRows());
    core::FactoredStatistics<T>(variables.State(), BatchOf<T>(hidden, labels), update_rows_,
                                execution, outputs);
    return absl::OkStatus();
  }

 private:
  bool update_rows_;
};

template <typename T>
class FactoredSettleOp : public FactoredOp<T> {
 public:
  using FactoredOp<T>::FactoredOp;

 protected:
  bool Updates() const override { return true; }

  absl::Status Run(tf::OpKernelContext*, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) const override {
    TF_RETURN_IF_ERROR(variables.CheckAllRows());
    TF_RETURN_IF_ERROR(variables.OwnRows());
    core::Settle<T>(variables.State(), execution);
    return absl::OkStatus();
  }
};

TFX_REGISTER_FACTORED(FactoredStatistics);
TFX_REGISTER_FACTORED(FactoredSettle);

}  // namespace
}  // namespace tfx
