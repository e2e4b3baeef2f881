// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/sorted_classes.h"

#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/tiles.h"
#include "core/radix_sort.h"

namespace tfx::core::gpu {
namespace {

// A thread for each place. Classes that are left out become class `end`.
__global__ void __launch_bounds__(kThreads)
    TakeIds(const int64_t* labels, int64_t num_labels, const int64_t* candidates, int64_t n,
            int64_t end, uint64_t* entries) {
  const int64_t place = OwnIndex();
  if (place >= n) return;
  const int64_t id = place < num_labels ? labels[place] : candidates[place - num_labels];
  const auto row = static_cast<uint32_t>(id < 0 || id >= end ? end : id);
  entries[place] = EntryOf(row, static_cast<uint32_t>(place));
}

// Whether a class begins at an entry.
__device__ bool IsFirst(const uint64_t* entries, int64_t i, uint32_t end) {
  const uint32_t row = KeyOf(entries[i]);
  return row != end && (i == 0 || KeyOf(entries[i - 1]) != row);
}

// A block for each tile.
__global__ void __launch_bounds__(kThreads)
    CountClasses(const uint64_t* entries, int64_t n, uint32_t end, uint32_t* counts) {
  TFX_SHARED_MEMORY(memory);
  uint32_t count = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = int64_t{blockIdx.x} * kTile + round * kThreads + threadIdx.x;
    if (i < n && IsFirst(entries, i, end)) ++count;
  }
  count = OfBlock(count, Sum(), memory);
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// A block for each tile; `before`: how many classes begin in the tiles before.
__global__ void __launch_bounds__(kThreads)
    FindClasses(const uint64_t* entries, int64_t n, uint32_t end, const uint32_t* before,
                uint32_t* begins) {
  TFX_SHARED_MEMORY(memory);
  auto* shared = reinterpret_cast<uint32_t*>(memory);
  uint32_t number = before[blockIdx.x];
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = int64_t{blockIdx.x} * kTile + round * kThreads + threadIdx.x;
    const bool is_first = i < n && IsFirst(entries, i, end);
    uint32_t total;
    const uint32_t own = number + SumBefore(is_first ? 1 : 0, shared, &total);
    if (is_first) begins[own] = static_cast<uint32_t>(i);
    const bool is_there = i < n && KeyOf(entries[i]) != end;
    if (is_there && (i + 1 == n || KeyOf(entries[i + 1]) == end)) {
      begins[own + (is_first ? 1 : 0)] = static_cast<uint32_t>(i + 1);
    }
    number += total;
  }
}

}  // namespace

SortedClasses TakeSortedClasses(int64_t n, Scratch* scratch) {
  SortedClasses sorted;
  sorted.sort = TakeRadixSort(n, scratch);
  sorted.entries = sorted.sort.entries;
  sorted.begins = scratch->Take<uint32_t>(n + 1);
  sorted.num_classes = scratch->Take<uint32_t>(1);
  return sorted;
}

void SortClasses(CUstream_st* stream, const int64_t* labels, int64_t num_labels,
                 const int64_t* candidates, int64_t num_candidates, int64_t end,
                 const SortedClasses& sorted) {
  constexpr size_t kOfSums = kWarps * sizeof(uint64_t);
  const int64_t n = num_labels + num_candidates, num_tiles = BlocksOf(n, kTile);
  uint32_t* const counts = sorted.sort.counts;
  if (n == 0) {
    SumTiles(stream, counts, 1, 0, sorted.num_classes);
    return;
  }
  const int bits = BitsOfClasses(end + 1);
  TFX_LAUNCH_THREADS(TakeIds, n, stream, labels, num_labels, candidates, n, end,
                     UnsortedEntries(sorted.sort, bits));
  SortEntries(stream, n, bits, sorted.sort);
  const auto none = static_cast<uint32_t>(end);
  TFX_LAUNCH(CountClasses, Grid(num_tiles), dim3(kThreads), kOfSums, stream, sorted.entries, n,
             none, counts);
  SumTiles(stream, counts, 1, num_tiles, sorted.num_classes);
  TFX_LAUNCH(FindClasses, Grid(num_tiles), dim3(kThreads), kOfSums, stream, sorted.entries, n, none,
             counts, sorted.begins);
}

}  // namespace tfx::core::gpu
