// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_OUT_OF_MEMORY_H_
#define TFX_LARGEOUT_CORE_OUT_OF_MEMORY_H_

#include <cstdint>
#include <new>
#include <vector>

namespace tfx::core {

// Memory that could not be allocated.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(int64_t bytes, int64_t had = 0) : bytes_(bytes), had_(had) {}

  int64_t bytes() const { return bytes_; }  // requested
  int64_t had() const { return had_; }      // already held by the call
  const char* what() const noexcept override { return "out of memory"; }

 private:
  int64_t bytes_, had_;
};

// The bytes of n objects; throws OutOfMemory on overflow.
template <typename T>
int64_t BytesOf(int64_t n) {
  constexpr int64_t kMost = int64_t{1} << 60;
  if (n > kMost / static_cast<int64_t>(sizeof(T))) throw OutOfMemory(kMost);
  return n * static_cast<int64_t>(sizeof(T));
}

// A vector of n equal values; throws OutOfMemory with the bytes.
template <typename T>
void Assign(std::vector<T>* vector, int64_t n, const T& value) {
  const int64_t bytes = BytesOf<T>(n);
  try {
    vector->assign(n, value);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(bytes);
  }
}

// Reserves room for n values; throws likewise.
template <typename T>
void Reserve(std::vector<T>* vector, int64_t n) {
  const int64_t bytes = BytesOf<T>(n);
  try {
    vector->reserve(n);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(bytes);
  }
}

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_OUT_OF_MEMORY_H_
