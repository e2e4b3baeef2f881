// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_PARALLEL_FOR_H_
#define TFX_LARGEOUT_CORE_PARALLEL_FOR_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>

namespace tfx::core {

// Calls its second argument with ranges that cover [0, n), perhaps in parallel. The third is about
// the cost of one index in nanoseconds.
using ParallelFor =
    std::function<void(int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t cost)>;

// The first exception of work on threads of a pool, for the caller to rethrow: an exception that
// leaves a thread ends the process. After the first, remaining work is skipped.
class FirstException {
 public:
  template <typename Work>
  void Catch(const Work& work) {
    if (has_one_.load(std::memory_order_relaxed)) return;
    try {
      work();
    } catch (...) {
      if (!has_one_.exchange(true)) exception_ = std::current_exception();
    }
  }

  // REQUIRES: the work has ended.
  void Rethrow() const {
    if (exception_ != nullptr) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> has_one_{false};
  std::exception_ptr exception_;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_PARALLEL_FOR_H_
