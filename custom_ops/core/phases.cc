// SPDX-License-Identifier: Apache-2.0

#include "core/phases.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace tfx::core {
namespace {

constexpr int64_t kLongTask = 1'000'000'000;  // nanoseconds: every worker gets a thread of its own
constexpr int kSpins = 4000;                  // before the processor is offered to other threads

std::atomic<bool> recording{false};
std::mutex recorded_mutex;
PhaseSeconds recorded;  // guarded by recorded_mutex

using Clock = std::chrono::steady_clock;

void Record(const char* name, Clock::time_point start) {
  const std::chrono::duration<double> time = Clock::now() - start;
  const std::lock_guard<std::mutex> lock(recorded_mutex);
  recorded[name] += time.count();
}

struct Progress {
  std::atomic<int64_t> started{0};
  std::atomic<int64_t> ended{0};
};

int64_t CountOf(const Phase& phase) {
  int64_t count = 0;
  for (const Tasks& tasks : phase.tasks) count += tasks.count;
  return count;
}

void RunTask(const Phase& phase, int64_t task, int worker) {
  for (const Tasks& tasks : phase.tasks) {
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
      const bool record = worker == 0 && recording.load(std::memory_order_relaxed);
      const Clock::time_point start = record ? Clock::now() : Clock::time_point();
      const int64_t count = CountOf(phases[p]);
      int64_t task;
      while ((task = progress[p].started.fetch_add(1, std::memory_order_relaxed)) < count) {
        RunTask(phases[p], task, worker);
        progress[p].ended.fetch_add(1, std::memory_order_release);
      }
      WaitFor(progress[p].ended, count);
      if (record) Record(phases[p].name, start);
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

PhaseSeconds TakePhaseSeconds(bool record) {
  const std::lock_guard<std::mutex> lock(recorded_mutex);
  recording = record;
  PhaseSeconds taken;
  taken.swap(recorded);
  return taken;
}

}  // namespace tfx::core
