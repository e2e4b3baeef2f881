// SPDX-License-Identifier: Apache-2.0
//
// The random numbers of core/kept_logits.h, on every device the same.

#ifndef TFX_LARGEOUT_CORE_KEEP_RANDOM_H_
#define TFX_LARGEOUT_CORE_KEEP_RANDOM_H_

#include <cstdint>

namespace tfx::core {

// A step of the generator SplitMix64.
constexpr uint64_t Scrambled(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A random number of 32 bits for an example.
constexpr uint32_t KeyOfExample(uint64_t seed_0, uint64_t seed_1, int64_t example) {
  const uint64_t seed = Scrambled(Scrambled(seed_0) ^ seed_1);
  return static_cast<uint32_t>(Scrambled(seed ^ static_cast<uint64_t>(example)) >> 32);
}

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_KEEP_RANDOM_H_
