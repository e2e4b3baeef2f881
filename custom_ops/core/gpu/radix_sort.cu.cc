// SPDX-License-Identifier: Apache-2.0
//
// By digits of 8 bits, the lowest first. Each pass keeps the order of equal digits: of tiles,
// within a tile of warps, and within a warp of rounds and lanes.

#include "core/gpu/radix_sort.h"

#include <utility>

#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/tiles.h"

namespace tfx::core::gpu {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kOfWarp = kRounds * kWarpSize;
static_assert(kDigits == kThreads, "a thread for each digit");

__device__ uint32_t DigitOf(uint64_t entry, int shift) {
  return KeyOf(entry) >> shift & (kDigits - 1);
}

int NumPasses(int bits) { return (bits + kDigitBits - 1) / kDigitBits; }

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

}  // namespace

RadixSort TakeRadixSort(int64_t n, Scratch* scratch) {
  RadixSort sort;
  sort.entries = scratch->Take<uint64_t>(n);
  sort.spare = scratch->Take<uint64_t>(n);
  sort.counts = scratch->Take<uint32_t>(BlocksOf(n, kTile) * kDigits);
  sort.totals = scratch->Take<uint32_t>(kDigits);
  return sort;
}

uint64_t* UnsortedEntries(const RadixSort& sort, int bits) {
  return NumPasses(bits) % 2 == 0 ? sort.entries : sort.spare;
}

void SortEntries(CUstream_st* stream, int64_t n, int bits, const RadixSort& sort) {
  constexpr size_t kOfSums = kWarps * sizeof(uint64_t);
  constexpr size_t kOfDigits = kDigits * sizeof(uint32_t);
  if (n == 0) return;
  const int64_t num_tiles = BlocksOf(n, kTile);
  uint64_t* from = UnsortedEntries(sort, bits);
  uint64_t* to = from == sort.entries ? sort.spare : sort.entries;
  for (int pass = 0; pass < NumPasses(bits); ++pass, std::swap(from, to)) {
    const int shift = pass * kDigitBits;
    TFX_LAUNCH(CountDigits, Grid(num_tiles), dim3(kThreads), kOfDigits, stream, from, n, shift,
               sort.counts);
    SumTiles(stream, sort.counts, kDigits, num_tiles, sort.totals);
    TFX_LAUNCH(DealOut, Grid(num_tiles), dim3(kThreads), kOfSums + kWarps * kOfDigits, stream, from,
               n, shift, sort.counts, sort.totals, to);
  }
}

}  // namespace tfx::core::gpu
