// SPDX-License-Identifier: Apache-2.0
//
// Faults that ops on hash indexes find on a GPU, for the host to read.

#ifndef TFX_LARGEOUT_CORE_GPU_HASH_FAULTS_H_
#define TFX_LARGEOUT_CORE_GPU_HASH_FAULTS_H_

#include <cstdint>

namespace tfx::core::gpu {

constexpr unsigned long long kNoFault = ~0ull;

// The first position of each kind, or kNoFault.
struct HashFaults {
  unsigned long long element;  // of `elements`: not a coordinate
  unsigned long long radius;   // of `radii`: not falling, or out of bounds
  unsigned long long row;      // a number is not finite
  unsigned long long table;    // corrupt
};

constexpr HashFaults kNoFaults = {kNoFault, kNoFault, kNoFault, kNoFault};

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_HASH_FAULTS_H_
