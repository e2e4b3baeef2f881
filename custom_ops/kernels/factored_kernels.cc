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
  absl::Status Run(tf::OpKernelContext* context, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) override {
    const tf::Tensor& hidden = context->input(kFirstInput);
    const tf::Tensor& labels = context->input(kFirstInput + 1);
    TF_RETURN_IF_ERROR(variables.CheckBatch(hidden, labels, execution));
    const tf::TensorShape by_example({hidden.dim_size(0)});
    tf::Tensor *targets, *squares, *sum, *gram_hidden, *u_hidden;
    TF_RETURN_IF_ERROR(context->allocate_output(0, labels.shape(), &targets));
    TF_RETURN_IF_ERROR(context->allocate_output(1, by_example, &squares));
    TF_RETURN_IF_ERROR(context->allocate_output(2, by_example, &sum));
    TF_RETURN_IF_ERROR(context->allocate_output(3, hidden.shape(), &gram_hidden));
    TF_RETURN_IF_ERROR(context->allocate_output(4, hidden.shape(), &u_hidden));
    if (update_rows_) TF_RETURN_IF_ERROR(variables.OwnRows());
    core::FactoredStatistics<T>(
        variables.State(), BatchOf<T>(hidden, labels), update_rows_, execution,
        {targets->flat<T>().data(), squares->flat<T>().data(), sum->flat<T>().data(),
         gram_hidden->flat<T>().data(), u_hidden->flat<T>().data()});
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
  absl::Status Run(tf::OpKernelContext*, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) override {
    TF_RETURN_IF_ERROR(variables.CheckAllRows());
    TF_RETURN_IF_ERROR(variables.OwnRows());
    core::Settle<T>(variables.State(), execution);
    return absl::OkStatus();
  }
};

template <typename T>
class FactoredReanchorOp : public FactoredOp<T> {
 public:
  using FactoredOp<T>::FactoredOp;

 protected:
  absl::Status Run(tf::OpKernelContext*, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) override {
    TF_RETURN_IF_ERROR(variables.CheckAllRows());
    TF_RETURN_IF_ERROR(variables.OwnEverything());
    core::Reanchor<T>(variables.State(), execution);
    return absl::OkStatus();
  }
};

TFX_REGISTER_FACTORED(FactoredStatistics);
TFX_REGISTER_FACTORED(FactoredSettle);
TFX_REGISTER_FACTORED(FactoredReanchor);

}  // namespace
}  // namespace tfx
