// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/hash_family.h"
#include "core/hash_tables.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/hash_arguments.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class HashIndexUpdateOp : public CpuOp {
 public:
  explicit HashIndexUpdateOp(tf::OpKernelConstruction* context)
      : CpuOp(context), functions_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("num_biases", &num_biases_));
    OP_REQUIRES(context, num_biases_ <= 1,
                InvalidArgument("bias must be at most one variable; got ", num_biases_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) override {
    LockedVariables variables;
    std::vector<std::string> names = {"entries", "starts", "touched_at", "built_at", "kernel"};
    if (num_biases_ > 0) names.push_back("bias");
    TF_RETURN_IF_ERROR(variables.Lock(context, names, LockedVariables::Mode::kExclusive));
    tf::Tensor* moved;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &moved));
    return Update(context, execution, variables, &moved->scalar<int64_t>()());
  }

 private:
  absl::Status Update(tf::OpKernelContext* context, const core::Execution& execution,
                      LockedVariables& variables, int64_t* moved) {
    const tf::Tensor& kernel = *variables.tensor(kKernel);
    const int first = variables.size();
    const tf::Tensor &touched = context->input(first + 2), &now_of_call = context->input(first + 3),
                     &range = context->input(first + 4), &radii = context->input(first + 5);
    core::HashFamily family;
    TF_RETURN_IF_ERROR(CheckWeights(variables));
    TF_RETURN_IF_ERROR(CheckRadii(radii));
    const int64_t width = kernel.dim_size(1) + (radii.NumElements() > 0 ? 2 : 0);
    TF_RETURN_IF_ERROR(
        functions_.Get(context->input(first), context->input(first + 1), width, &family));
    family.radii = radii.flat<float>().data();
    family.num_radii = radii.NumElements();
    if (family.NumBuckets() > kMostBuckets) {
      return InvalidArgument("a table must have at most 2^24 buckets; got ", family.NumBuckets(),
                             " for ", family.num_radii, " radii");
    }
    core::HashTables tables;
    TF_RETURN_IF_ERROR(GetTables(variables, 0, family.NumBuckets(), &tables));
    TF_RETURN_IF_ERROR(CheckTimes(variables, family, tables, kernel.dim_size(0)));
    if (touched.dims() != 1) {
      return InvalidArgument("touched must be [n]; got shape ", touched.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(CheckIds("touched", touched, -1, tables.num_classes, execution));
    TF_RETURN_IF_ERROR(CheckScalar("now", now_of_call));
    const int32_t now = now_of_call.scalar<int32_t>()();
    if (now < 0) return InvalidArgument("now must be at least 0; got ", now);
    if (range.shape() != tf::TensorShape({2})) {
      return InvalidArgument("tables must be [first, the one behind the last]; got shape ",
                             range.shape().DebugString());
    }
    const int64_t begin = range.flat<int64_t>()(0), end = range.flat<int64_t>()(1);
    if (begin < 0 || begin > end || end > tables.num_tables) {
      return InvalidArgument("tables must be a range in [0, ", tables.num_tables, "]; got [", begin,
                             ", ", end, ")");
    }
    for (int i = 0; i < kKernel; ++i) TF_RETURN_IF_ERROR(variables.Own(i));
    TF_RETURN_IF_ERROR(GetTables(variables, 0, family.NumBuckets(), &tables));
    *moved = 0;
    Touch(touched, now, variables);
    if (begin == end) return absl::OkStatus();
    return Build(execution, family, variables, tables, begin, end, now, moved);
  }

  static absl::Status CheckRadii(const tf::Tensor& radii) {
    if (radii.dims() != 1) {
      return InvalidArgument("radii must be [m]; got shape ", radii.shape().DebugString());
    }
    const auto r = radii.flat<float>();
    for (int64_t i = 0; i < r.size(); ++i) {
      const float square = r(i) * r(i);
      if (r(i) > 0 && square > 0 && std::isfinite(square) && (i == 0 || r(i) < r(i - 1))) continue;
      return InvalidArgument("radii must fall, and be finite and above 0, and so their squares; ",
                             "got ", r(i), " at position [", i, "]", kRebuild);
    }
    return absl::OkStatus();
  }

  absl::Status CheckWeights(const LockedVariables& variables) const {
    const tf::Tensor& kernel = *variables.tensor(kKernel);
    if (kernel.dtype() != dtype_ || kernel.dims() != 2) {
      return InvalidArgument("kernel must be ", tf::DataTypeString(dtype_), " [C, D]; got ",
                             tf::DataTypeString(kernel.dtype()), " of shape ",
                             kernel.shape().DebugString());
    }
    if (num_biases_ == 0) return absl::OkStatus();
    const tf::Tensor& bias = *variables.tensor(kKernel + 1);
    if (bias.dtype() == dtype_ && bias.shape() == tf::TensorShape({kernel.dim_size(0)})) {
      return absl::OkStatus();
    }
    return InvalidArgument("bias must be ", tf::DataTypeString(dtype_),
                           " [C] with the C of kernel, ", kernel.dim_size(0), "; got ",
                           tf::DataTypeString(bias.dtype()), " of shape ",
                           bias.shape().DebugString());
  }

  static absl::Status CheckTimes(const LockedVariables& variables, const core::HashFamily& family,
                                 const core::HashTables& tables, int64_t num_classes) {
    const tf::Tensor &touched_at = *variables.tensor(2), &built_at = *variables.tensor(3);
    if (tables.num_classes != num_classes || tables.num_tables != family.num_tables) {
      return InvalidArgument("entries must be [L, C] = [", family.num_tables, ", ", num_classes,
                             "]; got [", tables.num_tables, ", ", tables.num_classes, "]");
    }
    if (touched_at.dtype() != tf::DT_UINT32 ||
        touched_at.shape() != tf::TensorShape({num_classes}) || built_at.dtype() != tf::DT_UINT32 ||
        built_at.shape() != tf::TensorShape({tables.num_tables})) {
      return InvalidArgument("touched_at and built_at must be uint32 [C] and [L]; got shapes ",
                             touched_at.shape().DebugString(), " and ",
                             built_at.shape().DebugString());
    }
    return absl::OkStatus();
  }

  absl::Status Build(const core::Execution& execution, const core::HashFamily& family,
                     const LockedVariables& variables, const core::HashTables& tables,
                     int64_t begin, int64_t end, int32_t now, int64_t* moved) {
    const tf::Tensor& kernel = *variables.tensor(kKernel);
    const void* bias = num_biases_ == 0 ? nullptr : variables.tensor(kKernel + 1)->data();
    const core::LayerWeights weights = {kernel.data(), bias, kernel.dtype() == tf::DT_BFLOAT16,
                                        kernel.dim_size(0), kernel.dim_size(1)};
    const core::RowTimes times = {static_cast<const int32_t*>(variables.tensor(2)->data()),
                                  static_cast<int32_t*>(variables.tensor(3)->data())};
    // What building all tables takes is not kept.
    core::Workspace of_call;
    const bool is_kept = end - begin <= kTablesOfKeptScratch;
    const core::Execution on(execution.set, execution.num_workers, execution.parallel_for,
                             is_kept ? execution.workspace : of_call);
    const core::HashFault fault =
        core::UpdateTables(family, weights, times, begin, end, now, tables, on, moved);
    if (fault.row >= 0) {
      return InvalidArgument("kernel must be finite; got an infinite or NaN number in row ",
                             fault.row);
    }
    if (fault.table >= 0) {
      return InvalidArgument("entries and starts must be a table as it was written; table ",
                             fault.table, " is corrupt", kRebuild);
    }
    return absl::OkStatus();
  }

  // Marks stay where Build refuses what it finds: W has changed.
  static void Touch(const tf::Tensor& touched, int32_t now, const LockedVariables& variables) {
    int32_t* touched_at = static_cast<int32_t*>(variables.tensor(2)->data());
    const auto ids = touched.flat<int64_t>();
    for (int64_t i = 0; i < ids.size(); ++i) {
      if (ids(i) >= 0) touched_at[ids(i)] = now;
    }
  }

  static constexpr int64_t kTablesOfKeptScratch = 4;
  static constexpr int kKernel = 4;  // variables: four of the index, then W and perhaps b

  const HashFunctions functions_;
  tf::DataType dtype_;
  int num_biases_;
};

REGISTER_KERNEL_BUILDER(Name("TfxHashIndexUpdate").Device(tf::DEVICE_CPU), HashIndexUpdateOp);

}  // namespace
}  // namespace tfx
