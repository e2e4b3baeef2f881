// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_EXECUTION_H_
#define TFX_LARGEOUT_CORE_EXECUTION_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/dense_kernels_isa.h"
#include "core/hash_kernels_isa.h"
#include "core/instruction_set.h"
#include "core/parallel_for.h"
#include "core/phases.h"
#include "core/row_kernels_isa.h"
#include "core/workspace.h"

namespace tfx::core {

// The kernels of an instruction set; T is float or double.
// REQUIRES: Supports(set).
template <typename T>
const DenseKernels<T>& DenseKernelsOf(InstructionSet set) {
  if constexpr (std::is_same_v<T, float>) {
    return TFX_OF_SET(kFloatKernels, set);
  } else {
    return TFX_OF_SET(kDoubleKernels, set);
  }
}
inline const RowKernels& RowKernelsOf(InstructionSet set) { return TFX_OF_SET(kRowKernels, set); }
inline const HashKernels& HashKernelsOf(InstructionSet set) {
  return TFX_OF_SET(kHashKernels, set);
}

// The resources of a computation on the processor: the kernels of an instruction set, workers of a
// pool, and memory. Every algorithm of core takes one; the structs with arguments are independent
// of it, so that another device can use them, too.
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

  // The best number of workers for `n` indexes that cost about `cost` nanoseconds each.
  int WorkersFor(int64_t n, int64_t cost) const {
    constexpr int64_t kCostOfWorker = 20'000;
    const int64_t worth = std::min(n, n * std::max<int64_t>(cost, 1) / kCostOfWorker);
    return static_cast<int>(std::clamp<int64_t>(worth, 1, num_workers));
  }

  // Calls work(begin, end, worker) for ranges that cover [0, n), on some of the workers. They don't
  // spin, unlike in Run.
  void ForRanges(int workers, int64_t n,
                 const std::function<void(int64_t begin, int64_t end, int worker)>& work) const {
    if (workers == 1) return work(0, n, 0);
    constexpr int64_t kLong = 1'000'000'000;  // nanoseconds: each gets a separate thread
    const int64_t num_ranges = std::min<int64_t>(n, 8 * workers);
    std::atomic<int64_t> next{0};
    const auto take_ranges = [&](int64_t first, int64_t last) {
      for (int64_t w = first; w < last; ++w) {
        for (int64_t r = next++; r < num_ranges; r = next++) {
          work(n * r / num_ranges, n * (r + 1) / num_ranges, static_cast<int>(w));
        }
      }
    };
    parallel_for(workers, take_ranges, kLong);
  }

  // Memory until the innermost Workspace::Scope ends.
  template <typename T>
  T* Take(int64_t n) const {
    return workspace.Take<T>(n);
  }
  template <typename T>
  T* Filled(int64_t n, T value) const {
    T* array = Take<T>(n);
    std::fill_n(array, n, value);
    return array;
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
