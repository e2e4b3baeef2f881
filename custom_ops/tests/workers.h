// SPDX-License-Identifier: Apache-2.0
//
// Resources for algorithms in tests.

#ifndef TFX_LARGEOUT_TESTS_WORKERS_H_
#define TFX_LARGEOUT_TESTS_WORKERS_H_

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "core/execution.h"

namespace tfx::core {

// The instruction sets of this processor, from the best to the least.
inline std::vector<InstructionSet> InstructionSets() {
  std::vector<InstructionSet> sets;
  for (InstructionSet set : kInstructionSets) {
    if (Supports(set)) sets.push_back(set);
  }
  return sets;
}

// Maximal parallelism, so that sanitizers see every race.
inline void OneThreadAnIndex(int64_t n, const std::function<void(int64_t, int64_t)>& work,
                             int64_t) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < n; ++i) threads.emplace_back(work, i, i + 1);
  for (std::thread& thread : threads) thread.join();
}

// A pool whose threads are all busy: the caller does everything sequentially.
inline void OnCaller(int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t) {
  work(0, n);
}

// An execution with its memory, on separate threads; a single worker is the caller.
struct Workers {
  explicit Workers(InstructionSet set, int count = 1)
      : parallel_for(count == 1 ? OnCaller : OneThreadAnIndex),
        execution(set, count, parallel_for, workspace) {}

  const ParallelFor parallel_for;
  Workspace workspace;
  const Execution execution;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_TESTS_WORKERS_H_
