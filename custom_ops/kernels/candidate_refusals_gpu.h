// SPDX-License-Identifier: Apache-2.0
//
// What ops on labels and candidates have refused on a GPU, as errors of later ops: the host looks
// at what has come from the device so far, and does not wait.

#ifndef TFX_LARGEOUT_KERNELS_CANDIDATE_REFUSALS_GPU_H_
#define TFX_LARGEOUT_KERNELS_CANDIDATE_REFUSALS_GPU_H_

#include <mutex>
#include <string>

#include "core/gpu/candidate_refusal.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tfx {

// Those of a device, as long as it is there.
class CandidateRefusals : public tensorflow::ResourceBase {
 public:
  // The error for the first thing that ops of the device have refused, if it has come by now. Then
  // it is forgotten, for which the host waits.
  static absl::Status Earlier(tensorflow::OpKernelContext* context);

  // Gives those of an op's device.
  static absl::Status Of(tensorflow::OpKernelContext* context,
                         tensorflow::core::RefCountPtr<CandidateRefusals>* refusals);

  // Begins to find what is wrong, into *fault in the memory of the device, and to bring it here.
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
