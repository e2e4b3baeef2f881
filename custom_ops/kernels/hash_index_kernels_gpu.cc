// SPDX-License-Identifier: Apache-2.0
//
// Updates hash tables on a GPU. The host waits twice if there are tables to write: for the number
// of changed rows, and for the faults. If there is a fault on the device, marks are kept. A touched
// id that is not a row is skipped.

#include "core/gpu/hash_tables.h"
#include "kernels/gpu_op.h"
#include "kernels/hash_faults_gpu.h"
#include "kernels/hash_index_op.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;
using core::gpu::kNoFault;

class HashIndexUpdateGpuOp : public GpuOp {
 public:
  using Call = HashIndexCall;

  explicit HashIndexUpdateGpuOp(tf::OpKernelConstruction* context)
      : GpuOp(context), call_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context) const override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, call_.Names(), LockedVariables::Mode::kExclusive));
    Call::Arguments arguments;
    TF_RETURN_IF_ERROR(call_.Get(context, variables, &arguments));
    tf::Tensor* moved;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &moved));
    moved->scalar<int64_t>()() = 0;
    const bool builds = arguments.begin < arguments.end;
    tf::Tensor scratch;
    for (int index : {Call::kTouchedAt, Call::kEntries, Call::kStarts, Call::kBuiltAt}) {
      if (builds || index == Call::kTouchedAt) TF_RETURN_IF_ERROR(variables.Own(index));
    }
    TF_RETURN_IF_ERROR(
        GetTables(variables, Call::kEntries, arguments.tables.num_buckets, &arguments.tables));
    const core::gpu::TableUpdate update = {arguments.family,       call_.Weights(variables),
                                           Call::Times(variables), arguments.begin,
                                           arguments.end,          arguments.now,
                                           arguments.tables};
    if (builds) {
      const int64_t bytes = core::gpu::TableUpdateScratchBytes(update);
      TF_RETURN_IF_ERROR(AllocateScratch(context, bytes, &scratch));
    }
    const tf::Tensor& touched = call_.Touched(context);
    TF_RETURN_IF_ERROR(StatusOf(core::gpu::MarkRows(
        StreamOf(context), touched.flat<int64_t>().data(), touched.NumElements(), arguments.now,
        arguments.tables.num_classes, Call::TouchedAt(variables))));
    if (!builds) return absl::OkStatus();
    return Build(context, update, scratch.data(), &moved->scalar<int64_t>()());
  }

 private:
  // Marks are set already.
  static absl::Status Build(tf::OpKernelContext* context, const core::gpu::TableUpdate& update,
                            void* scratch, int64_t* moved) {
    const auto* found = core::gpu::TableVerdictIn(scratch);
    core::gpu::TableVerdict verdict;
    TF_RETURN_IF_ERROR(
        StatusOf(core::gpu::FindChangedRows(StreamOf(context), update, scratch).AfterChanges()));
    TF_RETURN_IF_ERROR(CopyToHost(context, found, &verdict));
    TF_RETURN_IF_ERROR(CheckRadius(context, update.family, verdict.faults));
    TF_RETURN_IF_ERROR(
        StatusOf(core::gpu::HashChangedRows(StreamOf(context), update, verdict.num_changed, scratch)
                     .AfterChanges()));
    TF_RETURN_IF_ERROR(CopyToHost(context, found, &verdict));
    TF_RETURN_IF_ERROR(CheckElement(context, update.family, verdict.faults));
    if (verdict.faults.row != kNoFault) return Call::RowError(verdict.faults.row);
    const bool is_needed = verdict.num_changed < update.tables.num_classes;  // what tables hold
    if (is_needed && verdict.faults.table != kNoFault) {
      return Call::TableError(verdict.faults.table);
    }
    *moved = static_cast<int64_t>(verdict.moved);
    return StatusOf(core::gpu::WriteTables(StreamOf(context), update, scratch).AfterChanges());
  }

  static absl::Status CheckRadius(tf::OpKernelContext* context, const core::HashFamily& family,
                                  const core::gpu::HashFaults& faults) {
    if (faults.radius == kNoFault) return absl::OkStatus();
    float got;
    TF_RETURN_IF_ERROR(CopyToHost(context, family.radii + faults.radius, &got));
    return Call::RadiusError(static_cast<int64_t>(faults.radius), got);
  }

  const Call call_;
};

REGISTER_KERNEL_BUILDER(Name("TfxHashIndexUpdate")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("entries")
                            .HostMemory("starts")
                            .HostMemory("touched_at")
                            .HostMemory("built_at")
                            .HostMemory("kernel")
                            .HostMemory("bias")
                            .HostMemory("now")
                            .HostMemory("tables")
                            .HostMemory("moved"),
                        HashIndexUpdateGpuOp);

}  // namespace
}  // namespace tfx
