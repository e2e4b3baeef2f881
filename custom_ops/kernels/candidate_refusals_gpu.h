// SPDX-License-Identifier: Apache-2.0
//
// Faults that ops on labels and candidates found on a GPU, as errors of later ops: the host reads
// the reports that have arrived so far, and does not wait.

#ifndef TFX_LARGEOUT_KERNELS_CANDIDATE_REFUSALS_GPU_H_
#define TFX_LARGEOUT_KERNELS_CANDIDATE_REFUSALS_GPU_H_

#include <mutex>
#include <string>

#include "core/gpu/candidate_refusal.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tfx {

// The faults of a device, while it exists.
class CandidateRefusals : public tensorflow::ResourceBase {
 public:
  // The error for the first fault of the device's ops, if it has arrived. It is then reset, for
  // which the host waits.
  static absl::Status Earlier(tensorflow::OpKernelContext* context);

  // Returns the faults of an op's device.
  static absl::Status Of(tensorflow::OpKernelContext* context,
                         tensorflow::core::RefCountPtr<CandidateRefusals>* refusals);

  // Starts to find the fault, into *fault in the memory of the device, and to copy it to the host.
  absl::Status Find(tensorflow::OpKernelContext* context,
                    const core::gpu::CandidateNumbers& numbers, core::gpu::CandidateFault* fault);

  std::string DebugString() const override { return "refusals of labels and candidates"; }

 private:
  absl::Status Allocate(tensorflow::OpKernelContext* context);
  absl::Status Clear(tensorflow::OpKernelContext* context);
  absl::Status Tell(tensorflow::OpKernelContext* context);

  std::mutex mutex_;
  tensorflow::Tensor on_device_, on_host_;  // a CandidateReport each; the host's is pinned
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_CANDIDATE_REFUSALS_GPU_H_
