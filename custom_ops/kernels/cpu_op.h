// SPDX-License-Identifier: Apache-2.0
//
// What every op on the processor begins with.

#ifndef TFX_LARGEOUT_KERNELS_CPU_OP_H_
#define TFX_LARGEOUT_KERNELS_CPU_OP_H_

#include <mutex>
#include <string>

#include "core/execution.h"
#include "kernels/invalid_argument.h"
#include "kernels/parallel_for.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Calls run(execution), which returns a status, with what an op runs on in one call: the
// instruction set of this process, TensorFlow's pool, and memory that goes back to `workspace`
// afterwards.
template <typename Run>
absl::Status RunOnCpu(tensorflow::OpKernelContext* context, core::Workspace& workspace,
                      const Run& run) {
  core::InstructionSet set;
  std::string error;
  if (!core::ChooseInstructionSet(&set, &error)) return InvalidArgument(error);
  const core::ParallelFor pool = PoolOf(context);
  const core::Workspace::Scope scope(workspace);
  return run(core::Execution(set, NumWorkers(context), pool, workspace));
}

// An op that keeps memory from one call to the next, and so runs one call at a time.
class CpuOp : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    const std::lock_guard<std::mutex> lock(mutex_);
    OP_REQUIRES_OK(context, RunOnCpu(context, workspace_, [&](const core::Execution& execution) {
                     return Run(context, execution);
                   }));
  }

 protected:
  // Checks the arguments and does the work. Members that change are guarded by the op's lock.
  virtual absl::Status Run(tensorflow::OpKernelContext* context, core::Execution execution) = 0;

 private:
  std::mutex mutex_;
  core::Workspace workspace_;  // guarded by mutex_
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_CPU_OP_H_
