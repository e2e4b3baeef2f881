// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_EXECUTION_H_
#define TFX_LARGEOUT_CORE_EXECUTION_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/dense_kernels.h"
#include "core/hash_kernels.h"
#include "core/instruction_set.h"
#include "core/parallel_for.h"
#include "core/phases.h"
#include "core/row_kernels.h"
#include "core/workspace.h"

namespace tfx::core {

// What a computation on the processor runs on: the kernels of an instruction set, workers of a
// pool, and memory. Every algorithm of core takes one; the structs that say what to compute know
// nothing of it, so that another device can take the same.
struct Execution {
  // REQUIRES: Supports(set); num_workers > 0; pool and memory outlive this object.
  Execution(InstructionSet set, int num_workers, const ParallelFor& parallel_for,
            Workspace& workspace)
      : set(set),
        dense(DenseKernelsOf<float>(set)),
        rows(RowKernelsOf(set)),
        hashes(HashKernelsOf(set)),
        num_workers(num_workers),
        parallel_for(parallel_for),
        workspace(workspace) {}

  void Run(std::vector<Phase> phases) const {
    RunPhases(std::move(phases), num_workers, parallel_for);
  }

  // As many workers as `n` indexes are worth, of which one costs about `cost` nanoseconds.
  int WorkersFor(int64_t n, int64_t cost) const {
    constexpr int64_t kCostOfWorker = 20'000;
    const int64_t worth = std::min(n, n * std::max<int64_t>(cost, 1) / kCostOfWorker);
    return static_cast<int>(std::clamp<int64_t>(worth, 1, num_workers));
  }

  // Calls work(begin, end, worker) for ranges that make up [0, n), on some of the workers.
  void ForRanges(const char* name, int workers, int64_t n,
                 const std::function<void(int64_t begin, int64_t end, int worker)>& work) const {
    if (workers == 1) return work(0, n, 0);
    const int64_t tasks = std::min<int64_t>(n, 4 * workers);
    const auto run = [&](int64_t task, int worker) {
      work(n * task / tasks, n * (task + 1) / tasks, worker);
    };
    RunPhases({{name, {{tasks, run}}}}, workers, parallel_for);
  }

  // Memory until the innermost Workspace::Scope ends.
  template <typename T>
  T* Take(int64_t n) const {
    return workspace.Take<T>(n);
  }

  InstructionSet set;
  const DenseKernels<float>& dense;
  const RowKernels& rows;
  const HashKernels& hashes;
  int num_workers;
  const ParallelFor& parallel_for;
  Workspace& workspace;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_EXECUTION_H_
