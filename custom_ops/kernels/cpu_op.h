// SPDX-License-Identifier: Apache-2.0
//
// The common part of all ops on the processor.

#ifndef TFX_LARGEOUT_KERNELS_CPU_OP_H_
#define TFX_LARGEOUT_KERNELS_CPU_OP_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "core/execution.h"
#include "core/pool.h"
#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tfx {

// The status of run(), or of its exception: no exception may reach TensorFlow.
template <typename Run>
absl::Status WithoutExceptions(tensorflow::OpKernelContext* context, const Run& run) {
  const auto out_of_memory = [&](const std::string& bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        context->op_kernel().type_string(), " could not get ", bytes, "; no variable has changed"));
  };
  try {
    return run();
  } catch (const core::OutOfMemory& error) {
    return out_of_memory(
        absl::StrCat(error.bytes(), " bytes of memory beside ", error.had(), " that it had"));
  } catch (const std::bad_alloc&) {
    return out_of_memory("a few bytes of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(
        absl::StrCat(context->op_kernel().type_string(), ": ", error.what()));
  }
}

// Calls run(execution), which returns a status, with the resources of one call: the instruction set
// of this process, TensorFlow's pool, and memory that is returned afterwards. It may throw
// out-of-memory exceptions as long as it has changed no variable.
template <typename Run>
absl::Status RunOnCpu(tensorflow::OpKernelContext* context, const Run& run) {
  return WithoutExceptions(context, [&] {
    core::InstructionSet set;
    std::string error;
    if (!core::ChooseInstructionSet(&set, &error)) return InvalidArgument(error);
    const auto* device_threads = context->device()->tensorflow_cpu_worker_threads();
    // Rethrows an exception of the work.
    const core::ParallelFor pool = [pool = device_threads->workers](
                                       int64_t n, const std::function<void(int64_t, int64_t)>& work,
                                       int64_t cost) {
      using tensorflow::thread::ThreadPool;
      core::FirstException exception;
      pool->ParallelFor(
          n, ThreadPool::SchedulingParams::Adaptive(cost),
          [&](int64_t begin, int64_t end) { exception.Catch([&] { work(begin, end); }); });
      exception.Rethrow();
    };
    core::Pool<core::Workspace>::Loan workspace(core::PoolOfProcess<core::Workspace>());
    const core::Workspace::Scope scope(*workspace);
    return run(core::Execution(set, device_threads->num_threads, pool, *workspace));
  });
}

// An op whose calls may run concurrently.
class CpuOp : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    OP_REQUIRES_OK(context, RunOnCpu(context, [&](const core::Execution& execution) {
                     return Run(context, execution);
                   }));
  }

 protected:
  // Checks the arguments and does the work.
  virtual absl::Status Run(tensorflow::OpKernelContext* context,
                           core::Execution execution) const = 0;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_CPU_OP_H_
