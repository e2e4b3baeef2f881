// SPDX-License-Identifier: Apache-2.0

#include "core/workspace.h"

#include <sys/mman.h>

#include <cstdint>

namespace tfx::core {
namespace {

constexpr int64_t kPage = 1 << 16;  // a multiple of the pages of any system
constexpr int64_t kLeastRange = 1 << 24;
constexpr int64_t kLittle = 1 << 20;  // not worth a call of the system

int64_t RoundUp(int64_t size) { return (size + kPage - 1) / kPage * kPage; }

// Addresses; null where there are none.
char* Reserve(int64_t size) {
  void* begin = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return begin == MAP_FAILED ? nullptr : static_cast<char*>(begin);
}

}  // namespace

Workspace::~Workspace() { FreeRanges(); }

int64_t Workspace::held() const {
  int64_t sum = 0;
  for (const Range& range : ranges_) sum += range.held;
  return sum;
}

// Releases the pages of a range after `used`.
void Workspace::Shrink(Range* range, int64_t used) {
  const int64_t begin = RoundUp(used), end = RoundUp(range->held);
  if (end - begin < kLittle) return;
  madvise(range->begin + begin, end - begin, MADV_DONTNEED);
  range->held = used;
}

void Workspace::NextRange() {
  Shrink(&ranges_[at_.range], at_.used);
  ++at_.range;
  at_.used = 0;
}

void Workspace::AddRange(int64_t size) {
  ranges_.reserve(ranges_.size() + 1);
  size = RoundUp(size);
  int64_t wanted = std::max({2 * size, RoundUp(2 * most_in_use_), kLeastRange});
  char* begin = Reserve(wanted);
  if (begin == nullptr) begin = Reserve(wanted = size);
  if (begin == nullptr) throw OutOfMemory(size, at_.in_use);
  ranges_.push_back({begin, wanted, 0});
  at_.used = 0;
}

void Workspace::GoBackTo(const Place& place) {
  at_ = place;
  if (at_.in_use == 0) EndCall();
}

void Workspace::EndCall() {
  if (ranges_.size() > 1) return FreeRanges();  // the next call gets a sufficient single range
  if (++calls_ < kCallsOfWindow) return;
  if (!ranges_.empty()) Shrink(&ranges_[0], most_in_use_);
  calls_ = 0;
  most_in_use_ = 0;
}

void Workspace::FreeRanges() {
  for (const Range& range : ranges_) munmap(range.begin, range.size);
  ranges_.clear();
  at_ = {0, 0, 0};
}

}  // namespace tfx::core
