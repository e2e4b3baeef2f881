// SPDX-License-Identifier: Apache-2.0
//
// A radix sort by digits of 8 bits, the lowest first. Each pass keeps the order of equal digits: of
// tiles, within a tile of warps, and within a warp of rounds and lanes.

#include "core/gpu/sorted_classes.h"

#include <algorithm>
#include <utility>

#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"
#include "core/radix_sort.h"

namespace tfx::core::gpu {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kRounds = 8;                 // entries of a thread
constexpr int kTile = kRounds * kThreads;  // entries of a block
constexpr int kOfWarp = kRounds * kWarpSize;
static_assert(kDigits == kThreads, "a thread for each digit");

__device__ uint32_t ClassOf(uint64_t entry) { return static_cast<uint32_t>(entry >> 32); }

__device__ uint32_t DigitOf(uint64_t entry, int shift) {
  return ClassOf(entry) >> shift & (kDigits - 1);
}

// A thread for each place. What is left out becomes class `end`.
__global__ void __launch_bounds__(kThreads)
    TakeIds(const int64_t* labels, int64_t num_labels, const int64_t* candidates, int64_t n,
            int64_t end, uint64_t* entries) {
  const int64_t place = OwnIndex();
  if (place >= n) return;
  const int64_t id = place < num_labels ? labels[place] : candidates[place - num_labels];
  const auto row = static_cast<uint64_t>(id < 0 || id >= end ? end : id);
  entries[place] = row << 32 | static_cast<uint64_t>(place);
}

// counts[digit, tile]: a block for each tile.
__global__ void __launch_bounds__(kThreads)
    CountDigits(const uint64_t* entries, int64_t n, int shift, uint32_t* counts) {
  TFX_SHARED_MEMORY(memory);
  auto* count = reinterpret_cast<uint32_t*>(memory);
  count[threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = int64_t{blockIdx.x} * kTile + round * kThreads + threadIdx.x;
    if (i < n) atomicAdd(count + DigitOf(entries[i], shift), 1u);
  }
  __syncthreads();
  counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

// A warp for each row of counts [rows, tiles], which become the sums of those before in the row.
__global__ void __launch_bounds__(kThreads)
    SumTiles(uint32_t* counts, int64_t num_rows, int64_t num_tiles, uint32_t* totals) {
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  if (row >= num_rows) return;
  const unsigned lane = threadIdx.x % kWarpSize;
  uint32_t sum = 0;
  for (int64_t first = 0; first < num_tiles; first += kWarpSize) {
    uint32_t* const count = counts + row * num_tiles + first + lane;
    const bool is_in = first + lane < num_tiles;
    const uint32_t own = is_in ? *count : 0, up_to = SumUpTo(own);
    if (is_in) *count = sum + up_to - own;
    sum += __shfl_sync(~0u, up_to, kWarpSize - 1);
  }
  if (lane == 0) totals[row] = sum;
}

// A block for each tile.
__global__ void __launch_bounds__(kThreads)
    DealOut(const uint64_t* from, int64_t n, int shift, const uint32_t* counts,
            const uint32_t* totals, uint64_t* to) {
  TFX_SHARED_MEMORY(memory);
  auto* shared = reinterpret_cast<uint32_t*>(memory);
  uint32_t* const of_warps = shared + kWarps;  // [kWarps, kDigits]: counts, then where they go
  const unsigned warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  uint32_t total;
  uint32_t next = SumBefore(totals[threadIdx.x], shared, &total);
  next += counts[int64_t{threadIdx.x} * gridDim.x + blockIdx.x];
  for (int w = 0; w < kWarps; ++w) of_warps[w * kDigits + threadIdx.x] = 0;
  __syncthreads();

  uint32_t* const of_warp = of_warps + warp * kDigits;
  const int64_t first = int64_t{blockIdx.x} * kTile + warp * kOfWarp + lane;
  uint32_t ranks[kRounds];
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = first + round * kWarpSize;
    const uint32_t digit = i < n ? DigitOf(from[i], shift) : kDigits;
    const unsigned same = __match_any_sync(~0u, digit);
    const auto before = static_cast<uint32_t>(__popc(same & ((1u << lane) - 1)));
    const uint32_t of_rounds = i < n ? of_warp[digit] : 0;
    ranks[round] = of_rounds + before;
    __syncwarp();
    if (i < n && before == 0) of_warp[digit] = of_rounds + static_cast<uint32_t>(__popc(same));
    __syncwarp();
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    uint32_t* const place = of_warps + w * kDigits + threadIdx.x;
    const uint32_t count = *place;
    *place = next;
    next += count;
  }
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = first + round * kWarpSize;
    if (i < n) to[of_warp[DigitOf(from[i], shift)] + ranks[round]] = from[i];
  }
}

// Whether a class begins at an entry.
__device__ bool IsFirst(const uint64_t* entries, int64_t i, uint32_t end) {
  const uint32_t row = ClassOf(entries[i]);
  return row != end && (i == 0 || ClassOf(entries[i - 1]) != row);
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
    const bool is_there = i < n && ClassOf(entries[i]) != end;
    if (is_there && (i + 1 == n || ClassOf(entries[i + 1]) == end)) {
      begins[own + (is_first ? 1 : 0)] = static_cast<uint32_t>(i + 1);
    }
    number += total;
  }
}

void BeginSums(CUstream_st* stream, uint32_t* counts, int64_t num_rows, int64_t num_tiles,
               uint32_t* totals) {
  const int64_t warps = std::min<int64_t>(num_rows, kWarps);
  TFX_LAUNCH(SumTiles, Grid(BlocksOf(num_rows, warps)), Grid(warps * kWarpSize), 0, stream, counts,
             num_rows, num_tiles, totals);
}

}  // namespace

SortedClasses TakeSortedClasses(int64_t n, Scratch* scratch) {
  SortedClasses sorted;
  sorted.entries = scratch->Take<uint64_t>(n);
  sorted.begins = scratch->Take<uint32_t>(n + 1);
  sorted.num_classes = scratch->Take<uint32_t>(1);
  sorted.spare = scratch->Take<uint64_t>(n);
  sorted.counts = scratch->Take<uint32_t>(BlocksOf(n, kTile) * kDigits);
  sorted.totals = scratch->Take<uint32_t>(kDigits);
  return sorted;
}

void SortClasses(CUstream_st* stream, const int64_t* labels, int64_t num_labels,
                 const int64_t* candidates, int64_t num_candidates, int64_t end,
                 const SortedClasses& sorted) {
  constexpr size_t kOfSums = kWarps * sizeof(uint64_t);
  constexpr size_t kOfDigits = kDigits * sizeof(uint32_t);
  const int64_t n = num_labels + num_candidates, num_tiles = BlocksOf(n, kTile);
  if (n == 0) {
    BeginSums(stream, sorted.counts, 1, 0, sorted.num_classes);
    return;
  }
  const int num_passes = (BitsOfClasses(end + 1) + kDigitBits - 1) / kDigitBits;
  // The last pass ends in `entries`.
  uint64_t* from = num_passes % 2 == 0 ? sorted.entries : sorted.spare;
  uint64_t* to = num_passes % 2 == 0 ? sorted.spare : sorted.entries;
  TFX_LAUNCH_THREADS(TakeIds, n, stream, labels, num_labels, candidates, n, end, from);
  for (int pass = 0; pass < num_passes; ++pass, std::swap(from, to)) {
    const int shift = pass * kDigitBits;
    TFX_LAUNCH(CountDigits, Grid(num_tiles), dim3(kThreads), kOfDigits, stream, from, n, shift,
               sorted.counts);
    BeginSums(stream, sorted.counts, kDigits, num_tiles, sorted.totals);
    TFX_LAUNCH(DealOut, Grid(num_tiles), dim3(kThreads), kOfSums + kWarps * kOfDigits, stream, from,
               n, shift, sorted.counts, sorted.totals, to);
  }
  const auto none = static_cast<uint32_t>(end);
  TFX_LAUNCH(CountClasses, Grid(num_tiles), dim3(kThreads), kOfSums, stream, sorted.entries, n,
             none, sorted.counts);
  BeginSums(stream, sorted.counts, 1, num_tiles, sorted.num_classes);
  TFX_LAUNCH(FindClasses, Grid(num_tiles), dim3(kThreads), kOfSums, stream, sorted.entries, n, none,
             sorted.counts, sorted.begins);
}

}  // namespace tfx::core::gpu
