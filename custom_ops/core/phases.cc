// SPDX-License-Identifier: Apache-2.0

#include "core/phases.h"

#include <atomic>
#include <thread>

namespace tfx::core {
namespace {

constexpr int64_t kLongTask = 1'000'000'000;  // nanoseconds: every worker gets a thread of its own
constexpr int kSpins = 4000;                  // before the processor is offered to other threads

struct Progress {
  std::atomic<int64_t> started{0};
  std::atomic<int64_t> ended{0};
};

int64_t CountOf(const Phase& phase) {
  int64_t count = 0;
  for (const Tasks& tasks : phase) count += tasks.count;
  return count;
}

void RunTask(const Phase& phase, int64_t task, int worker) {
  for (const Tasks& tasks : phase) {
    if (task < tasks.count) return tasks.run(task, worker);
    task -= tasks.count;
  }
}

void WaitFor(const std::atomic<int64_t>& ended, int64_t count) {
  for (int spins = 0; ended.load(std::memory_order_acquire) < count; ++spins) {
    if (spins > kSpins) std::this_thread::yield();
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
  }
}

}  // namespace

void RunPhases(const std::vector<Phase>& phases, int num_workers, const ParallelFor& parallel_for) {
  std::vector<Progress> progress(phases.size());
  auto work = [&](int worker) {
    for (size_t p = 0; p < phases.size(); ++p) {
      const int64_t count = CountOf(phases[p]);
      int64_t task;
      while ((task = progress[p].started.fetch_add(1, std::memory_order_relaxed)) < count) {
        RunTask(phases[p], task, worker);
        progress[p].ended.fetch_add(1, std::memory_order_release);
      }
      WaitFor(progress[p].ended, count);
    }
  };
  if (num_workers == 1) return work(0);
  parallel_for(
      num_workers,
      [&](int64_t begin, int64_t end) {
        for (int64_t worker = begin; worker < end; ++worker) work(static_cast<int>(worker));
      },
      kLongTask);
}

}  // namespace tfx::core
