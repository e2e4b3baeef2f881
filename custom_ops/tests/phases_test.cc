// SPDX-License-Identifier: Apache-2.0

#include "core/phases.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

void OneThreadAnIndex(int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < n; ++i) threads.emplace_back(work, i, i + 1);
  for (std::thread& thread : threads) thread.join();
}

// A pool whose threads are all taken: the caller does everything.
void Alone(int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t) { work(0, n); }

void EveryTaskRunsOnceAndPhasesInOrder(const ParallelFor& parallel_for) {
  for (int workers : {1, 2, 5}) {
    std::vector<int> first(100, 0), second(7, 0), third(3, 0);
    std::atomic<bool> in_order{true}, workers_known{true};
    const auto all_are_one = [](const std::vector<int>& counts) {
      for (int count : counts) {
        if (count != 1) return false;
      }
      return true;
    };
    RunPhases({{"first",
                {{100,
                  [&](int64_t task, int worker) {
                    ++first[task];
                    if (worker < 0 || worker >= workers) workers_known = false;
                  }}}},
               {"empty", {}},
               {"second",
                {{0, [&](int64_t, int) { in_order = false; }},
                 {7,
                  [&](int64_t task, int) {
                    if (!all_are_one(first)) in_order = false;
                    ++second[task];
                  }},
                 {3, [&](int64_t task, int) { ++third[task]; }}}}},
              workers, parallel_for);
    EXPECT(in_order);
    EXPECT(workers_known);
    EXPECT(all_are_one(first) && all_are_one(second) && all_are_one(third));
  }
}

void TimesAreRecordedOnDemand() {
  const std::vector<Phase> phases = {{"some", {{3, [](int64_t, int) {}}}}};
  RunPhases(phases, 2, OneThreadAnIndex);
  EXPECT(TakePhaseSeconds(true).empty());
  RunPhases(phases, 2, OneThreadAnIndex);
  RunPhases(phases, 1, OneThreadAnIndex);
  const PhaseSeconds seconds = TakePhaseSeconds(false);
  EXPECT(seconds.size() == 1 && seconds.at("some") > 0);
  RunPhases(phases, 2, OneThreadAnIndex);
  EXPECT(TakePhaseSeconds(false).empty());
}

}  // namespace tfx::core

int main() {
  tfx::core::TimesAreRecordedOnDemand();
  tfx::core::EveryTaskRunsOnceAndPhasesInOrder(tfx::core::OneThreadAnIndex);
  tfx::core::EveryTaskRunsOnceAndPhasesInOrder(tfx::core::Alone);
  return tfx::test::Result();
}
