// SPDX-License-Identifier: Apache-2.0

#include "core/phases.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
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
  explicit Progress(int num_parts) : started(num_parts) {}

  std::vector<std::atomic<int64_t>> started;  // by part
  std::atomic<int64_t> ended{0};
};

int64_t CountOf(const Phase& phase) {
  int64_t count = 0;
  for (const Tasks& tasks : phase.tasks) count += tasks.count;
  return count;
}

// Runs a task of a part, in [0, num_parts), which is the same share of each range of tasks. Returns
// false if there is none left.
bool RunTask(const Phase& phase, int part, int num_parts, int64_t task, int worker) {
  for (const Tasks& tasks : phase.tasks) {
    const int64_t begin = tasks.count * part / num_parts;
    const int64_t count = tasks.count * (part + 1) / num_parts - begin;
    if (task < count) {
      tasks.run(begin + task, worker);
      return true;
    }
    task -= count;
  }
  return false;
}

// Parts belong to processors, whose caches hold what the same part worked on before. Returns the
// part of this one, or the next that no other thread has taken.
int TakePart(std::vector<std::atomic<bool>>& taken, int worker) {
#ifdef __linux__
  const int wanted = std::max(0, sched_getcpu());
#else
  const int wanted = worker;
#endif
  const int num_parts = static_cast<int>(taken.size());
  for (int k = 0; k < num_parts; ++k) {
    const int part = (wanted + k) % num_parts;
    if (!taken[part].exchange(true, std::memory_order_relaxed)) return part;
  }
  return worker;
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
  std::deque<Progress> progress;  // by phase
  for (size_t p = 0; p < phases.size(); ++p) progress.emplace_back(num_workers);
  std::vector<std::atomic<bool>> taken(num_workers);
  auto work = [&](int worker) {
    const int own = TakePart(taken, worker);
    for (size_t p = 0; p < phases.size(); ++p) {
      const bool record = worker == 0 && recording.load(std::memory_order_relaxed);
      const Clock::time_point start = record ? Clock::now() : Clock::time_point();
      for (int k = 0; k < num_workers; ++k) {
        const int part = (own + k) % num_workers;
        std::atomic<int64_t>& started = progress[p].started[part];
        while (RunTask(phases[p], part, num_workers,
                       started.fetch_add(1, std::memory_order_relaxed), worker)) {
          progress[p].ended.fetch_add(1, std::memory_order_release);
        }
      }
      WaitFor(progress[p].ended, CountOf(phases[p]));
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
