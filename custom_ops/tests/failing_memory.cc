// SPDX-License-Identifier: Apache-2.0

#include "tests/failing_memory.h"

#include <errno.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

namespace tfx::test {
namespace {

std::atomic<int64_t> requests_left{-1}, in_use{0}, most_in_use{0};

void Count(int64_t bytes) {
  const int64_t now = in_use += bytes;
  int64_t most = most_in_use.load();
  while (now > most && !most_in_use.compare_exchange_weak(most, now)) {
  }
}

}  // namespace

// Whether this request fails.
bool Fails() {
  int64_t left = requests_left.load();
  while (left > 0 && !requests_left.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0;
}

void FailAfter(int64_t n) { requests_left = n; }

int64_t CountAnew() { return most_in_use = in_use.load(); }

int64_t MostBytesInUse() { return most_in_use; }

void* Allocate(size_t size, size_t alignment) {
  if (Fails()) return nullptr;
  void* memory =
      aligned_alloc(alignment, (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment);
  if (memory != nullptr) Count(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  Count(-static_cast<int64_t>(malloc_usable_size(memory)));
  free(memory);
}

}  // namespace tfx::test

namespace {

constexpr size_t kAlignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

void* NewOrThrow(size_t size, size_t alignment) {
  void* memory = tfx::test::Allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return NewOrThrow(size, kAlignment); }
void* operator new[](size_t size) { return NewOrThrow(size, kAlignment); }
void* operator new(size_t size, std::align_val_t alignment) {
  return NewOrThrow(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return NewOrThrow(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return tfx::test::Allocate(size, kAlignment);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return tfx::test::Allocate(size, kAlignment);
}
void operator delete(void* memory) noexcept { tfx::test::Free(memory); }
void operator delete[](void* memory) noexcept { tfx::test::Free(memory); }
void operator delete(void* memory, size_t) noexcept { tfx::test::Free(memory); }
void operator delete[](void* memory, size_t) noexcept { tfx::test::Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { tfx::test::Free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { tfx::test::Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { tfx::test::Free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { tfx::test::Free(memory); }

// Replaces the C library's function for calls of this program. Addresses alone are not memory: see
// Workspace::held.
extern "C" void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  if (tfx::test::Fails()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, size, protection, flags, file, offset));
}
