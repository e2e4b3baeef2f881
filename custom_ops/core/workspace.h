// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_WORKSPACE_H_
#define TFX_LARGEOUT_CORE_WORKSPACE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/out_of_memory.h"

namespace tfx::core {

// Memory that is kept between calls: new pages from the system are slow.
//
// It is one range of addresses, used from its beginning; the system allocates a page when it is
// first written. So the memory held is the peak use, for any order of shapes. A call that does not
// fit starts a second range, and frees the unused part of the first; the next call has a single
// range, with room to grow. Memory that was not needed in kCallsOfWindow consecutive calls is
// freed.
class Workspace {
 public:
  // Memory taken while a Scope lives is returned when it ends. A call is the outermost scope.
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
      size_t range;    // the range in use, or the number of ranges
      int64_t used;    // in this range
      int64_t in_use;  // in all ranges
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

  // Bytes of the pages that were used and not freed since.
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
  int64_t most_in_use_ = 0;  // since the start of the window
  int calls_ = 0;            // in the window
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_WORKSPACE_H_
