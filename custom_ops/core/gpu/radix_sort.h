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

// What is sorted: the upper half is the key.
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

// Takes memory for n entries: about 16 bytes each.
RadixSort TakeRadixSort(int64_t n, Scratch* scratch);

// Where entries have to be before they are sorted by the lowest `bits` bits of their keys.
uint64_t* UnsortedEntries(const RadixSort& sort, int bits);

// Begins to sort n entries by the lowest `bits` bits of their keys, into `entries`. Equal ones stay
// in order.
// REQUIRES: the memory is for n entries or more, below 2^31.
void SortEntries(CUstream_st* stream, int64_t n, int bits, const RadixSort& sort);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_RADIX_SORT_H_
