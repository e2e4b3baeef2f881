// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/radix_sort.h"
#include "core/row_update.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "kernels/row_rule.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// Returns an error for repeated ids.
absl::Status CheckUnique(const int64_t* ids, int64_t n, int64_t num_rows,
                         const core::Execution& execution) {
  const core::Workspace::Scope scope(execution.workspace);
  auto* places = execution.Take<core::ClassPlace>(n);
  for (int64_t i = 0; i < n; ++i) places[i] = {static_cast<uint32_t>(ids[i]), 0};
  core::SortByClass(places, execution.Take<core::ClassPlace>(n), n, core::BitsOfClasses(num_rows));
  for (int64_t i = 1; i < n; ++i) {
    if (places[i].class_id == places[i - 1].class_id) {
      return InvalidArgument("ids must not repeat a row; got repeats of ", places[i].class_id);
    }
  }
  return absl::OkStatus();
}

class RowUpdateOp : public CpuOp {
 public:
  explicit RowUpdateOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("method", &method_));
    OP_REQUIRES_OK(context, context->GetAttr("num_slots", &num_slots_));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    LockedVariables variables;
    std::vector<std::string> names = {"variable"};
    for (int slot = 0; slot < num_slots_; ++slot) names.push_back(absl::StrCat("slot ", slot));
    TF_RETURN_IF_ERROR(variables.Lock(context, names, LockedVariables::Mode::kExclusive));
    RowRule rule;
    TF_RETURN_IF_ERROR(Check(context, variables, execution, &rule));
    TF_RETURN_IF_ERROR(variables.OwnAll());
    const tf::Tensor& ids = context->input(num_slots_ + 1);
    core::UpdateRows(rule.Updater(execution.rows), rule.Rows(variables, 0, 1),
                     ids.flat<int64_t>().data(), ids.NumElements(),
                     context->input(num_slots_ + 2).flat<float>().data(), execution);
    return absl::OkStatus();
  }

 private:
  absl::Status Check(tf::OpKernelContext* context, const LockedVariables& variables,
                     const core::Execution& execution, RowRule* rule) const {
    const tf::Tensor& weights = *variables.tensor(0);
    const tf::Tensor& ids = context->input(num_slots_ + 1);
    const tf::Tensor& gradient = context->input(num_slots_ + 2);
    if (weights.dtype() != dtype_ || weights.dims() == 0 ||
        weights.dim_size(0) > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument("variable must be ", tf::DataTypeString(dtype_),
                             " of rank 1 or higher, with fewer than 2^31 rows; got ",
                             tf::DataTypeString(weights.dtype()), " of shape ",
                             weights.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(
        rule->Set(method_, context->input(num_slots_ + 4), context->input(num_slots_ + 3)));
    TF_RETURN_IF_ERROR(rule->CheckSlots(variables, 0, 1, num_slots_));
    if (ids.dims() != 1) {
      return InvalidArgument("ids must be [n]; got shape ", ids.shape().DebugString());
    }
    tf::TensorShape shape = weights.shape();
    shape.set_dim(0, ids.dim_size(0));
    if (gradient.shape() != shape) {
      return InvalidArgument(
          "gradient must be [n, D] with the n of ids and the D of the variable: ",
          shape.DebugString(), "; got ", gradient.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(CheckIds("ids", ids, 0, weights.dim_size(0), execution));
    TF_RETURN_IF_ERROR(
        CheckUnique(ids.flat<int64_t>().data(), ids.NumElements(), weights.dim_size(0), execution));
    return CheckFinite("gradient", gradient, execution.dense);
  }

  std::string method_;
  int num_slots_;
  tf::DataType dtype_;
};

REGISTER_KERNEL_BUILDER(Name("TfxRowUpdate").Device(tf::DEVICE_CPU), RowUpdateOp);

}  // namespace
}  // namespace tfx
