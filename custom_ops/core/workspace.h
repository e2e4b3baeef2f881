// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_WORKSPACE_H_
#define TFX_LARGEOUT_CORE_WORKSPACE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/out_of_memory.h"

namespace tfx::core {

// Memory that is kept from one call to the next: pages that the system has just given are slow.
//
// It is one range of addresses, used from its beginning, of which the system gives a page when it
// is first written. So the bytes held are the most that were in use at once, whatever shapes came
// in which order. A call that does not fit begins a second range, and gives back what it does not
// use of the first; the next call has a single one, with room to grow. What kCallsOfWindow calls in
// a row have not needed is given back.
class Workspace {
 public:
  // What is taken while a Scope lives goes back when it ends. A call is the outermost one.
  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), at_(workspace.at_) {}
    ~Scope() { workspace_.GoBackTo(at_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class Workspace;

    Workspace& workspace_;
    const struct Place {
      size_t range;    // the one that is being used, or the number of ranges
      int64_t used;    // of that
      int64_t in_use;  // of all
    } at_;
  };

  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Room for n objects of a plain type, not initialised, on a cache line's boundary. Throws
  // OutOfMemory.
  template <typename T>
  T* Take(int64_t n) {
    const int64_t size = (BytesOf<T>(n) + kAlignment - 1) / kAlignment * kAlignment;
    while (at_.range < ranges_.size() && at_.used + size > ranges_[at_.range].size) NextRange();
    if (at_.range == ranges_.size()) AddRange(size);
    Range& range = ranges_[at_.range];
    char* begin = range.begin + at_.used;
    at_.used += size;
    at_.in_use += size;
    range.held = std::max(range.held, at_.used);
    most_in_use_ = std::max(most_in_use_, at_.in_use);
    return reinterpret_cast<T*>(begin);
  }

  // Bytes of the pages that were in use and not given back since.
  int64_t held() const;

  static constexpr int kCallsOfWindow = 64;

 private:
  using Place = Scope::Place;

  static constexpr int64_t kAlignment = 64;

  struct Range {
    char* begin;
    int64_t size;  // addresses, not memory
    int64_t held;
  };

  static void Shrink(Range* range, int64_t used);
  void NextRange();
  void AddRange(int64_t size);
  void GoBackTo(const Place& place);
  void EndCall();
  void FreeRanges();

  std::vector<Range> ranges_;
  Place at_ = {0, 0, 0};
  int64_t most_in_use_ = 0;  // since the window began
  int calls_ = 0;            // of the window
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_WORKSPACE_H_
