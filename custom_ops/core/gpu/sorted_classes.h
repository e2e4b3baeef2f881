// SPDX-License-Identifier: Apache-2.0
//
// The positions of classes, sorted by class on a GPU.

#ifndef TFX_LARGEOUT_CORE_GPU_SORTED_CLASSES_H_
#define TFX_LARGEOUT_CORE_GPU_SORTED_CLASSES_H_

#include <cstdint>

#include "core/gpu/radix_sort.h"
#include "core/gpu/scratch.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The positions of the u-th class (from 0) are the lower halves of entries[begins[u]] to [begins[u
// + 1]], rising; the upper halves are the class.
struct SortedClasses {
  uint64_t* entries;
  uint32_t* begins;
  uint32_t* num_classes;  // the number of distinct classes
  RadixSort sort;         // its memory
};

// Allocates memory for n positions: about 20 bytes each.
SortedClasses TakeSortedClasses(int64_t n, Scratch* scratch);

// Starts to sort the labels, positions [0, num_labels), and the candidates, the num_candidates
// positions after them. An id that is not in [0, end) is left out.
// REQUIRES: the memory is for num_labels + num_candidates positions, below 2^31; end < 2^31.
void SortClasses(CUstream_st* stream, const int64_t* labels, int64_t num_labels,
                 const int64_t* candidates, int64_t num_candidates, int64_t end,
                 const SortedClasses& sorted);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_SORTED_CLASSES_H_
