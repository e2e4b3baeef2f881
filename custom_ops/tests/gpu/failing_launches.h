// SPDX-License-Identifier: Apache-2.0
//
// Calls whose launches fail, on the processor.

#ifndef TFX_LARGEOUT_TESTS_GPU_FAILING_LAUNCHES_H_
#define TFX_LARGEOUT_TESTS_GPU_FAILING_LAUNCHES_H_

#ifndef __CUDACC__

#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/error.h"
#include "tests/expect.h"

namespace tfx::test {

struct Outcome {
  core::gpu::Error error;
  bool is_unchanged;  // the outputs of the call
};

// Runs a call repeatedly from the same state: `run()` returns its outcome. Each time another launch
// fails, once for a lack of memory. Expects unchanged outputs unless the error says they may have
// changed, and always with `never_changes`. If all launches fail, nothing has changed.
template <typename Run>
void FailEachLaunch(const Run& run, bool never_changes) {
  namespace gpu = core::gpu;
  gpu::on_cpu::Failure& failure = gpu::on_cpu::failure;
  int num_launches = 0;
  for (;; ++num_launches) {
    failure = {cudaErrorMemoryAllocation, num_launches, true};
    const Outcome outcome = run();
    if (failure.error != cudaSuccess) break;  // there are no more launches
    EXPECT(outcome.error.kind == gpu::ErrorKind::kMemory);
    EXPECT(outcome.error.may_have_changed ? !never_changes : outcome.is_unchanged);
  }
  EXPECT(num_launches > 0);
  failure = {cudaErrorNoKernelImageForDevice, 0, false};
  const Outcome outcome = run();
  failure = {};
  EXPECT(outcome.error.kind == gpu::ErrorKind::kNoCode && outcome.is_unchanged);
}

}  // namespace tfx::test

#endif  // __CUDACC__

#endif  // TFX_LARGEOUT_TESTS_GPU_FAILING_LAUNCHES_H_
