// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_EXECUTION_H_
#define TFX_LARGEOUT_CORE_EXECUTION_H_

#include <cstdint>
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

  void Run(const std::vector<Phase>& phases) const { RunPhases(phases, num_workers, parallel_for); }

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
