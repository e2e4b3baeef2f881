// SPDX-License-Identifier: Apache-2.0
//
// A computation in phases of tasks, on threads that stay together from the first phase to the last.

#ifndef TFX_LARGEOUT_CORE_PHASES_H_
#define TFX_LARGEOUT_CORE_PHASES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/parallel_for.h"

namespace tfx::core {

// Tasks [0, count). The second argument of `run` is the worker, in [0, num_workers): a worker runs
// one task at a time.
struct Tasks {
  int64_t count;
  std::function<void(int64_t task, int worker)> run;
};

// The number of blocks of a size for n items.
constexpr int64_t BlocksOf(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Tasks for n items, with a block of items each.
inline Tasks InBlocks(int64_t n, int64_t size,
                      std::function<void(int64_t begin, int64_t end, int worker)> run) {
  return {BlocksOf(n, size), [n, size, run = std::move(run)](int64_t task, int worker) {
            run(task * size, std::min(n, (task + 1) * size), worker);
          }};
}

// Tasks that may run in parallel. Each worker starts with a share of each range, in order, and then
// takes over remaining tasks of others.
struct Phase {
  const char* name;
  std::vector<Tasks> tasks;
};

// Runs the phases in order, each after all tasks of the previous one. A phase costs about a
// microsecond besides its tasks: between phases threads spin instead of sleeping. Threads of the
// pool that start late, or never, don't delay the phases.
//
// If a task throws, tasks that have not begun are skipped, and the caller gets the exception. Tasks
// should not allocate memory: their changes are not undone.
//
// REQUIRES: num_workers > 0.
void RunPhases(std::vector<Phase> phases, int num_workers, const ParallelFor& parallel_for);

// Phases with everything needed to run them, perhaps several times: Run allocates no memory. So
// work that must not stop half-way is prepared before it begins.
class PreparedPhases {
 public:
  // REQUIRES: num_workers > 0; parallel_for outlives this object.
  PreparedPhases(std::vector<Phase> phases, int num_workers, const ParallelFor& parallel_for);
  PreparedPhases(const PreparedPhases&) = delete;
  PreparedPhases& operator=(const PreparedPhases&) = delete;

  void Run();

 private:
  struct Progress {
    explicit Progress(int num_parts) : started(num_parts) {}

    std::vector<std::atomic<int64_t>> started;  // by part
    std::atomic<int64_t> ended{0};
  };

  void Work(int worker);
  int TakePart(int worker);

  const std::vector<Phase> phases_;
  const int num_workers_;
  const ParallelFor& parallel_for_;
  std::deque<Progress> progress_;         // by phase
  std::vector<std::atomic<bool>> taken_;  // by part
  std::vector<double> seconds_;           // by phase, if recorded
  FirstException exception_;
};

// Wall time by name of phase, over all calls of RunPhases in this process.
using PhaseSeconds = std::map<std::string, double>;

// Returns the times since the last call, and switches recording on or off. It is off at first.
PhaseSeconds TakePhaseSeconds(bool record);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_PHASES_H_
