// SPDX-License-Identifier: Apache-2.0
//
// A stable sort on a GPU.

#ifndef TFX_LARGEOUT_CORE_GPU_RADIX_SORT_H_
#define TFX_LARGEOUT_CORE_GPU_RADIX_SORT_H_

#include <cstdint>

#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/scratch.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The sorted entries: the upper half is the key.
__device__ inline uint32_t KeyOf(uint64_t entry) { return static_cast<uint32_t>(entry >> 32); }

__device__ inline uint64_t EntryOf(uint32_t key, uint32_t value) {
  return uint64_t{key} << 32 | value;
}

struct RadixSort {
  uint64_t* entries;
  // For sorting.
  uint64_t* spare;
  uint32_t* counts;
  uint32_t* totals;
};

// Allocates memory for n entries: about 16 bytes each.
RadixSort TakeRadixSort(int64_t n, Scratch* scratch);

// The position of the entries before a sort by the lowest `bits` bits of their keys.
uint64_t* UnsortedEntries(const RadixSort& sort, int bits);

// Starts to sort n entries by the lowest `bits` bits of their keys, into `entries`. The sort is
// stable.
// REQUIRES: the memory is for n entries or more, below 2^31.
void SortEntries(CUstream_st* stream, int64_t n, int bits, const RadixSort& sort);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_RADIX_SORT_H_
