// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_GPU_SCRATCH_H_
#define TFX_LARGEOUT_CORE_GPU_SCRATCH_H_

#include <cstdint>

namespace tfx::core::gpu {

// Allocates from a block of device memory. With a null block it only counts bytes.
class Scratch {
 public:
  // `memory` is aligned to 16, or null.
  explicit Scratch(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <typename T>
  T* Take(int64_t n) {
    char* at = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += (n * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(at);
  }

  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlignment = 16;

  char* memory_;
  int64_t bytes_ = 0;
};

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_SCRATCH_H_
