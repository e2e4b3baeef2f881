// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_PREFETCH_H_
#define TFX_LARGEOUT_CORE_PREFETCH_H_

#include <cstdint>

namespace tfx::core {

// Asks for bytes that are needed soon.
inline void PrefetchBytes(const void* from, int64_t size) {
  constexpr int64_t kLine = 64;
  if (size == 0) return;
  const char* bytes = static_cast<const char*>(from);
  for (int64_t at = 0; at < size; at += kLine) __builtin_prefetch(bytes + at);
  __builtin_prefetch(bytes + size - 1);
}

// Reads bytes that are needed soon, line after line. Where there are many, this is faster than
// asking for them: the processor sees a stream and runs ahead of it.
inline void ReadAhead(const void* from, int64_t size) {
  constexpr int64_t kLine = 64;
  const volatile char* bytes = static_cast<const char*>(from);
  for (int64_t at = 0; at < size; at += kLine) static_cast<void>(bytes[at]);
}

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_PREFETCH_H_
