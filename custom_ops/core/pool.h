// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_POOL_H_
#define TFX_LARGEOUT_CORE_POOL_H_

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <list>
#include <mutex>

namespace tfx::core {

// Objects that calls borrow: as many as there are concurrent calls, over all ops. The one returned
// last is lent first, since its memory is warmest. Objects that were idle over kReturnsOfWindow
// returns are destroyed.
template <typename T>
class Pool {
 public:
  // An object, until destruction.
  class Loan {
   public:
    explicit Loan(Pool& pool) : pool_(pool) {
      pool_.Lend(&one_);
      if (one_.empty()) one_.emplace_back();
    }
    ~Loan() { pool_.TakeBack(&one_); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    T& operator*() { return one_.front(); }
    T* operator->() { return &one_.front(); }

   private:
    Pool& pool_;
    std::list<T> one_;  // moved between lists, so that a return needs no memory
  };

  // The number of idle objects.
  size_t idle() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return idle_.size();
  }

  static constexpr int kReturnsOfWindow = 256;

 private:
  void Lend(std::list<T>* to) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) to->splice(to->begin(), idle_, std::prev(idle_.end()));
    fewest_idle_ = std::min(fewest_idle_, idle_.size());
  }

  void TakeBack(std::list<T>* from) {
    std::list<T> unused;  // destroyed after the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.splice(idle_.end(), *from);
    if (++returns_ < kReturnsOfWindow) return;
    unused.splice(unused.begin(), idle_, idle_.begin(), std::next(idle_.begin(), fewest_idle_));
    returns_ = 0;
    fewest_idle_ = idle_.size();
  }

  mutable std::mutex mutex_;
  std::list<T> idle_;       // guarded by mutex_, like the following
  size_t fewest_idle_ = 0;  // in this window
  int returns_ = 0;
};

// The pool of this process.
template <typename T>
Pool<T>& PoolOfProcess() {
  static auto* const pool = new Pool<T>;  // outlives threads that run when the process ends
  return *pool;
}

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_POOL_H_
