// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_PREFETCH_H_
#define TFX_LARGEOUT_CORE_PREFETCH_H_

#include <cstdint>

namespace tfx::core {

// Prefetches bytes.
inline void PrefetchBytes(const void* from, int64_t size) {
  constexpr int64_t kLine = 64;
  if (size == 0) return;
  const char* bytes = static_cast<const char*>(from);
  for (int64_t at = 0; at < size; at += kLine) __builtin_prefetch(bytes + at);
  __builtin_prefetch(bytes + size - 1);
}

// Reads bytes that are needed soon, line by line. For many bytes this is faster than prefetch
// instructions: the processor detects the stream and prefetches ahead.
inline void ReadAhead(const void* from, int64_t size) {
  constexpr int64_t kLine = 64;
  const volatile char* bytes = static_cast<const char*>(from);
  for (int64_t at = 0; at < size; at += kLine) static_cast<void>(bytes[at]);
}

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_PREFETCH_H_
