// SPDX-License-Identifier: Apache-2.0
//
// What ops on hash indexes find on a GPU that they refuse, for the host to read.

#ifndef TFX_LARGEOUT_CORE_GPU_HASH_FAULTS_H_
#define TFX_LARGEOUT_CORE_GPU_HASH_FAULTS_H_

#include <cstdint>

namespace tfx::core::gpu {

constexpr unsigned long long kNoFault = ~0ull;

// The first place of each kind, or kNoFault.
struct HashFaults {
  unsigned long long element;  // of `elements`: is none of the coordinates
  unsigned long long radius;   // of `radii`: does not fall, or is out of bounds
  unsigned long long row;      // has a number that is not finite
  unsigned long long table;    // is corrupt
};

constexpr HashFaults kNoFaults = {kNoFault, kNoFault, kNoFault, kNoFault};

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_HASH_FAULTS_H_
