// SPDX-License-Identifier: Apache-2.0

#include "kernels/candidate_refusals_gpu.h"

#include <cstring>

#include "kernels/check_values.h"
#include "kernels/gpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/row_rule.h"

namespace tfx {
namespace {

namespace tf = tensorflow;
using core::gpu::CandidateRefusal;
using core::gpu::CandidateReport;

constexpr int64_t kBytes = sizeof(CandidateReport);

const char* NameOf(CandidateRefusal refusal) {
  switch (refusal) {
    case CandidateRefusal::kLabels:
      return "labels";
    case CandidateRefusal::kCandidates:
      return "candidates";
    case CandidateRefusal::kHidden:
      return "hidden";
    case CandidateRefusal::kTrueGradient:
      return "true_gradient";
    case CandidateRefusal::kCandidateGradient:
      return "candidate_gradient";
    case CandidateRefusal::kLearningRate:
      break;
  }
  return "learning_rate";
}

// The error that the op would have raised.
absl::Status ErrorOf(const CandidateReport& report) {
  const CandidateRefusal refusal = report.Refusal();
  const int64_t place = report.Place();
  if (refusal == CandidateRefusal::kLearningRate)
    return RateError(report.weight_decay, static_cast<float>(report.number));
  const int64_t rows = report.columns == 0 ? place + 1 : place / report.columns + 1;
  tf::TensorShape shape({rows});
  if (report.columns > 0) shape.AddDim(report.columns);
  const char* name = NameOf(refusal);
  if (refusal == CandidateRefusal::kLabels || refusal == CandidateRefusal::kCandidates) {
    return IdError(name, absl::StrCat("[-1, ", report.num_classes, ")"), shape, place, report.id);
  }
  return FiniteError(name, shape, place, report.number);
}

}  // namespace

absl::Status CandidateRefusals::Of(tf::OpKernelContext* context,
                                   tf::core::RefCountPtr<CandidateRefusals>* refusals) {
  tf::ResourceMgr* resources = context->resource_manager();
  CandidateRefusals* found = nullptr;
  const auto make = [context](CandidateRefusals** made) {
    auto* refusals = new CandidateRefusals;
    const absl::Status status = refusals->Allocate(context);
    if (status.ok()) {
      *made = refusals;
    } else {
      refusals->Unref();
    }
    return status;
  };
  TF_RETURN_IF_ERROR(resources->LookupOrCreate<CandidateRefusals>(
      resources->default_container(), "tfx_candidate_refusals", &found, make));
  refusals->reset(found);
  return absl::OkStatus();
}

absl::Status CandidateRefusals::Allocate(tf::OpKernelContext* context) {
  TF_RETURN_IF_ERROR(AllocateScratch(context, kBytes, &on_device_));
  tf::AllocatorAttributes pinned;
  pinned.set_on_host(true);
  pinned.set_gpu_compatible(true);
  TF_RETURN_IF_ERROR(context->allocate_temp(tf::DT_INT8, {kBytes}, &on_host_, pinned));
  return Clear(context);
}

absl::Status CandidateRefusals::Clear(tf::OpKernelContext* context) {
  std::memset(on_host_.data(), 0, kBytes);
  DeviceAddress on_device(on_device_.data(), kBytes);
  return context->op_device_context()->stream()->MemZero(&on_device, kBytes);
}

absl::Status CandidateRefusals::Earlier(tf::OpKernelContext* context) {
  tf::core::RefCountPtr<CandidateRefusals> refusals;
  TF_RETURN_IF_ERROR(Of(context, &refusals));
  return refusals->Tell(context);
}

absl::Status CandidateRefusals::Tell(tf::OpKernelContext* context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* report = static_cast<CandidateReport*>(on_host_.data());
  if (__atomic_load_n(&report->is_set, __ATOMIC_ACQUIRE) == 0) return absl::OkStatus();
  auto* stream = context->op_device_context()->stream();
  TF_RETURN_IF_ERROR(stream->BlockHostUntilDone());  // all work is done, and none follows
  const absl::Status error = ErrorOf(*report);
  TF_RETURN_IF_ERROR(Clear(context));
  return InvalidArgument(
      error.message(),
      ". An earlier op on labels and candidates found this on the GPU: it took no "
      "step");
}

absl::Status CandidateRefusals::Find(tf::OpKernelContext* context,
                                     const core::gpu::CandidateNumbers& numbers,
                                     core::gpu::CandidateFault* fault) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TF_RETURN_IF_ERROR(StatusOf(core::gpu::FindCandidateFault(
      StreamOf(context), numbers, fault, static_cast<CandidateReport*>(on_device_.data()))));
  const DeviceAddress from(on_device_.data(), kBytes);
  return context->op_device_context()->stream()->Memcpy(on_host_.data(), from, kBytes);
}

}  // namespace tfx
