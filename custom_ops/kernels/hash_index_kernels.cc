// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <cstdint>

#include "core/hash_family.h"
#include "core/hash_tables.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/hash_index_op.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class HashIndexUpdateOp : public CpuOp {
 public:
  using Call = HashIndexCall;

  explicit HashIndexUpdateOp(tf::OpKernelConstruction* context) : CpuOp(context), call_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, call_.Names(), LockedVariables::Mode::kExclusive));
    tf::Tensor* moved;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &moved));
    Call::Arguments arguments;
    TF_RETURN_IF_ERROR(call_.Get(context, variables, &arguments));
    TF_RETURN_IF_ERROR(CheckElements(arguments.family));
    TF_RETURN_IF_ERROR(CheckRadii(arguments.family));
    const tf::Tensor& touched = call_.Touched(context);
    TF_RETURN_IF_ERROR(CheckIds("touched", touched, -1, arguments.tables.num_classes, execution));
    for (int i = 0; i < Call::kKernel; ++i) TF_RETURN_IF_ERROR(variables.Own(i));
    TF_RETURN_IF_ERROR(
        GetTables(variables, Call::kEntries, arguments.tables.num_buckets, &arguments.tables));
    moved->scalar<int64_t>()() = 0;
    return Build(execution, arguments, variables, touched, &moved->scalar<int64_t>()());
  }

 private:
  static absl::Status CheckRadii(const core::HashFamily& family) {
    const float* radii = family.radii;
    for (int64_t i = 0; i < family.num_radii; ++i) {
      const float square = radii[i] * radii[i];
      const bool falls = i == 0 || radii[i] < radii[i - 1];
      if (radii[i] > 0 && square > 0 && std::isfinite(square) && falls) continue;
      return Call::RadiusError(i, radii[i]);
    }
    return absl::OkStatus();
  }

  absl::Status Build(const core::Execution& execution, const Call::Arguments& arguments,
                     const LockedVariables& variables, const tf::Tensor& touched,
                     int64_t* moved) const {
    const core::RowTimes times = Call::Times(variables);
    const int64_t* rows = touched.flat<int64_t>().data();
    const int64_t num_rows = touched.NumElements();
    // Marks are kept if the update fails, since W has changed.
    if (arguments.begin == arguments.end) {
      core::Touch(rows, num_rows, arguments.now, times);
      return absl::OkStatus();
    }
    // Memory for building all tables is not kept.
    core::Workspace of_call;
    const bool is_kept = arguments.end - arguments.begin <= kTablesOfKeptScratch;
    const core::Execution on(execution.set, execution.num_workers, execution.parallel_for,
                             is_kept ? execution.workspace : of_call);
    const core::HashFault fault = core::UpdateTables(
        arguments.family, call_.Weights(variables), times, arguments.begin, arguments.end,
        arguments.now, arguments.tables, on, moved, rows, num_rows);
    if (fault.row >= 0) return Call::RowError(fault.row);
    return fault.table >= 0 ? Call::TableError(fault.table) : absl::OkStatus();
  }

  static constexpr int64_t kTablesOfKeptScratch = 4;

  const Call call_;
};

REGISTER_KERNEL_BUILDER(Name("TfxHashIndexUpdate").Device(tf::DEVICE_CPU), HashIndexUpdateOp);

}  // namespace
}  // namespace tfx
