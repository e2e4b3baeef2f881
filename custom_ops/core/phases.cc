// SPDX-License-Identifier: Apache-2.0

#include "core/phases.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace tfx::core {
namespace {

constexpr int64_t kLongTask = 1'000'000'000;  // nanoseconds: every worker gets a separate thread
constexpr int kSpins = 4000;                  // before the processor is offered to other threads

std::atomic<bool> recording{false};
std::mutex recorded_mutex;
PhaseSeconds recorded;  // guarded by recorded_mutex

using Clock = std::chrono::steady_clock;

int64_t CountOf(const Phase& phase) {
  int64_t count = 0;
  for (const Tasks& tasks : phase.tasks) count += tasks.count;
  return count;
}

// Runs a task of a part, in [0, num_parts), which is the same share of each range of tasks. Returns
// false if there is none left.
bool RunTask(const Phase& phase, int part, int num_parts, int64_t task, int worker,
             FirstException* exception) {
  for (const Tasks& tasks : phase.tasks) {
    const int64_t begin = tasks.count * part / num_parts;
    const int64_t count = tasks.count * (part + 1) / num_parts - begin;
    if (task < count) {
      exception->Catch([&] { tasks.run(begin + task, worker); });
      return true;
    }
    task -= count;
  }
  return false;
}

// All tasks that are waited for have been started, by threads that run: so calls end whatever else
// is in the pool, and with more threads than processors a thread that waits gives way.
void WaitFor(const std::atomic<int64_t>& ended, int64_t count) {
  for (int spins = 0; ended.load(std::memory_order_acquire) < count; ++spins) {
    if (spins > kSpins) std::this_thread::yield();
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
  }
}

}  // namespace

PreparedPhases::PreparedPhases(std::vector<Phase> phases, int num_workers,
                               const ParallelFor& parallel_for)
    : phases_(std::move(phases)),
      num_workers_(num_workers),
      parallel_for_(parallel_for),
      taken_(num_workers),
      seconds_(phases_.size()) {
  for (size_t p = 0; p < phases_.size(); ++p) progress_.emplace_back(num_workers);
}

// Parts belong to processors, whose caches hold what the same part worked on before. Returns the
// part of this one, or the next that no other thread has taken.
int PreparedPhases::TakePart(int worker) {
#ifdef __linux__
  const int wanted = std::max(0, sched_getcpu());
#else
  const int wanted = worker;
#endif
  for (int k = 0; k < num_workers_; ++k) {
    const int part = (wanted + k) % num_workers_;
    if (!taken_[part].exchange(true, std::memory_order_relaxed)) return part;
  }
  return worker;
}

void PreparedPhases::Work(int worker) {
  const int own = TakePart(worker);
  for (size_t p = 0; p < phases_.size(); ++p) {
    const Clock::time_point start = worker == 0 ? Clock::now() : Clock::time_point();
    for (int k = 0; k < num_workers_; ++k) {
      const int part = (own + k) % num_workers_;
      std::atomic<int64_t>& started = progress_[p].started[part];
      while (RunTask(phases_[p], part, num_workers_,
                     started.fetch_add(1, std::memory_order_relaxed), worker, &exception_)) {
        progress_[p].ended.fetch_add(1, std::memory_order_release);
      }
    }
    WaitFor(progress_[p].ended, CountOf(phases_[p]));
    if (worker == 0) {
      seconds_[p] = std::chrono::duration<double>(Clock::now() - start).count();
    }
  }
}

void PreparedPhases::Run() {
  for (Progress& progress : progress_) {
    for (std::atomic<int64_t>& started : progress.started) started = 0;
    progress.ended = 0;
  }
  for (std::atomic<bool>& taken : taken_) taken = false;
  if (num_workers_ == 1) {
    Work(0);
  } else {
    parallel_for_(
        num_workers_,
        [this](int64_t begin, int64_t end) {
          for (int64_t worker = begin; worker < end; ++worker) Work(static_cast<int>(worker));
        },
        kLongTask);
  }
  exception_.Rethrow();
  if (!recording.load(std::memory_order_relaxed)) return;
  const std::lock_guard<std::mutex> lock(recorded_mutex);
  try {
    for (size_t p = 0; p < phases_.size(); ++p) recorded[phases_[p].name] += seconds_[p];
  } catch (const std::bad_alloc&) {  // the work is done: better a figure less than an error
  }
}

void RunPhases(std::vector<Phase> phases, int num_workers, const ParallelFor& parallel_for) {
  PreparedPhases(std::move(phases), num_workers, parallel_for).Run();
}

PhaseSeconds TakePhaseSeconds(bool record) {
  const std::lock_guard<std::mutex> lock(recorded_mutex);
  recording = record;
  PhaseSeconds taken;
  taken.swap(recorded);
  return taken;
}

}  // namespace tfx::core
