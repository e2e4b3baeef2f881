// SPDX-License-Identifier: Apache-2.0
//
// Candidates from buckets on a GPU. The host waits once, for the faults.

#include "core/gpu/bucket_candidates.h"
#include "kernels/bucket_candidates_op.h"
#include "kernels/gpu_op.h"
#include "kernels/hash_arguments.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;
using core::gpu::kNoFault;

class BucketCandidatesGpuOp : public GpuOp {
 public:
  using Call = BucketCandidatesCall;

  explicit BucketCandidatesGpuOp(tf::OpKernelConstruction* context)
      : GpuOp(context), call_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context) const override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(
        variables.Lock(context, {"entries", "starts"}, LockedVariables::Mode::kShared));
    core::HashTables tables;
    TF_RETURN_IF_ERROR(GetTables(variables, 0, 0, &tables));
    core::gpu::BucketQueries with;
    TF_RETURN_IF_ERROR(call_.GetQueries(context, tables, &with.queries));
    with.rotations = context->input(Call::kRotations).flat<int64_t>().data();
    with.first_class = context->input(Call::kFirstClass).flat<int64_t>().data();
    int64_t *ids, *marks;
    TF_RETURN_IF_ERROR(call_.AllocateOutputs(context, with.queries, &ids, &marks));
    tf::Tensor scratch;
    TF_RETURN_IF_ERROR(AllocateScratch(
        context, core::gpu::BucketCandidatesScratchBytes(tables, with.queries, call_.own()),
        &scratch));
    const auto find =
        call_.own() ? core::gpu::OwnBucketCandidates : core::gpu::VotedBucketCandidates;
    TF_RETURN_IF_ERROR(StatusOf(find(StreamOf(context), tables, with, scratch.data(), ids, marks)));
    core::gpu::QueryFaults faults;
    TF_RETURN_IF_ERROR(CopyToHost(context, core::gpu::FaultsIn(scratch.data()), &faults));
    return Check(context, tables, with, faults);
  }

 private:
  static absl::Status Check(tf::OpKernelContext* context, const core::HashTables& tables,
                            const core::gpu::BucketQueries& with,
                            const core::gpu::QueryFaults& faults) {
    int32_t number;
    int64_t wide;
    if (faults.code != kNoFault) {
      TF_RETURN_IF_ERROR(CopyToHost(context, with.queries.codes + faults.code, &number));
      return Call::CodeError(tables.num_buckets / with.queries.num_ranges, number);
    }
    if (faults.order != kNoFault) {
      TF_RETURN_IF_ERROR(CopyToHost(context, with.queries.order + faults.order, &number));
      return Call::OrderError(tables.num_tables, static_cast<int64_t>(faults.order), number);
    }
    if (faults.rotation != kNoFault) {
      TF_RETURN_IF_ERROR(CopyToHost(context, with.rotations + faults.rotation, &wide));
      return Call::RotationError(static_cast<int64_t>(faults.rotation), wide);
    }
    if (faults.first_class != kNoFault) {
      TF_RETURN_IF_ERROR(CopyToHost(context, with.first_class, &wide));
      return Call::FirstClassError(tables.num_classes, wide);
    }
    return faults.visit == kNoFault ? absl::OkStatus() : Call::CorruptError();
  }

  const Call call_;
};

REGISTER_KERNEL_BUILDER(Name("TfxBucketCandidates")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("entries")
                            .HostMemory("starts")
                            .HostMemory("budget"),
                        BucketCandidatesGpuOp);

}  // namespace
}  // namespace tfx
