// SPDX-License-Identifier: Apache-2.0

#include "core/phases.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/expect.h"
#include "tests/workers.h"

namespace tfx::core {

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

TEST(TimesAreRecordedOnDemand) {
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

// A pool of one thread, which queues tasks after the task that runs.
class OneThread {
 public:
  OneThread() : thread_([this] { Work(); }) {}
  ~OneThread() {
    Add(nullptr);
    thread_.join();
  }

  // As TensorFlow's: the caller takes one part, and waits for all.
  void For(int64_t n, const std::function<void(int64_t, int64_t)>& work) {
    std::atomic<int64_t> left{n - 1};
    for (int64_t i = 1; i < n; ++i) {
      Add([&, i] {
        work(i, i + 1);
        --left;
      });
    }
    work(0, 1);
    while (left > 0) std::this_thread::yield();
  }

 private:
  void Add(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    added_.notify_one();
  }

  void Work() {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      added_.wait(lock, [this] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (task == nullptr) return;
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

// Threads that wait for a phase hold a thread of the pool that others queue for.
TEST(CallsThatShareAPoolEnd) {
  OneThread pool;
  const ParallelFor on_pool = [&](int64_t n, const auto& work, int64_t) { pool.For(n, work); };
  std::atomic<int> tasks{0};
  const auto call = [&] {
    const Tasks some = {20, [&](int64_t, int) { ++tasks; }};
    for (int i = 0; i < 50; ++i) RunPhases({{"first", {some}}, {"second", {some}}}, 4, on_pool);
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back(call);
  for (std::thread& caller : callers) caller.join();
  EXPECT(tasks == 3 * 50 * 40);
}

TEST(All) {
  EveryTaskRunsOnceAndPhasesInOrder(OneThreadAnIndex);
  EveryTaskRunsOnceAndPhasesInOrder(OnCaller);
}

}  // namespace tfx::core
