// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's intra-op pool, in the form that core takes it.

#ifndef TFX_LARGEOUT_KERNELS_PARALLEL_FOR_H_
#define TFX_LARGEOUT_KERNELS_PARALLEL_FOR_H_

#include <cstdint>
#include <functional>

#include "core/parallel_for.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tfx {

// Threads of the pool that the op of `context` may use.
inline int NumWorkers(tensorflow::OpKernelContext* context) {
  return context->device()->tensorflow_cpu_worker_threads()->num_threads;
}

// A core::ParallelFor over that pool, which throws what work has thrown. It is valid as long as
// `context` is.
inline auto PoolOf(tensorflow::OpKernelContext* context) {
  auto* pool = context->device()->tensorflow_cpu_worker_threads()->workers;
  return [pool](int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t cost) {
    using tensorflow::thread::ThreadPool;
    core::FirstException exception;
    pool->ParallelFor(
        n, ThreadPool::SchedulingParams::Adaptive(cost),
        [&](int64_t begin, int64_t end) { exception.Catch([&] { work(begin, end); }); });
    exception.Rethrow();
  };
}

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_PARALLEL_FOR_H_
