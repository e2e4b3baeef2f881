// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/hash_codes.h"

#include <algorithm>

#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/products.h"

namespace tfx::core::gpu {
namespace {

constexpr int64_t kMostFloats = int64_t{1} << 24;  // of rows and their values at a time

__global__ void SetFaults(HashFaults* faults) { *faults = kNoFaults; }

constexpr uint32_t kIsNotZero = 1, kIsNotFinite = 2;

__device__ uint32_t Look(float x) {
  return (x != 0 ? kIsNotZero : 0) | (isfinite(x) ? 0 : kIsNotFinite);
}

// A warp for each of n rows, from the first on: copies it, with radii made longer by two. Its range
// is kNoCode if it is 0.
__global__ void __launch_bounds__(kThreads)
    CopyRows(HashFamily family, HashedRows rows, int64_t first, int64_t n, float* vectors,
             int32_t* ranges, HashFaults* faults) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (i >= n) return;
  const LayerWeights& weights = rows.weights;
  const int64_t row = rows.ids == nullptr ? first + i : rows.ids[first + i];
  float* const vector = vectors + i * family.width;
  uint32_t found = 0;
  float square = 0;
  for (int64_t d = threadIdx.x % kWarpSize; d < weights.width; d += kWarpSize) {
    const float x = KernelAt(weights, row, d);
    vector[d] = x;
    found |= Look(x);
    square = fmaf(x, x, square);
  }
  found = OfWarp(found, Or());
  square = OfWarp(square, Sum());
  if (threadIdx.x % kWarpSize != 0) return;
  int32_t range = 0;
  if (family.num_radii > 0) {
    const float* radii = family.radii;
    const float bias = BiasOf(weights, row);
    square = fmaf(bias, bias, square);
    while (range + 1 < family.num_radii && square <= radii[range + 1] * radii[range + 1]) ++range;
    const float rest = sqrtf(fmaxf(0, radii[range] * radii[range] - square));
    vector[weights.width] = bias;
    vector[weights.width + 1] = rest;
    found |= Look(bias) | Look(rest);
  }
  ranges[i] = (found & kIsNotZero) == 0 ? kNoCode : range;
  if ((found & kIsNotFinite) != 0) atomicMin(&faults->row, static_cast<unsigned long long>(row));
}

// A thread for each row and hash. An element that is none of the coordinates is passed over.
__global__ void __launch_bounds__(kThreads)
    FindWinners(HashFamily family, int64_t first_hash, int64_t num_hashes, const float* vectors,
                int64_t n, int32_t* winners, HashFaults* faults) {
  const int64_t at = OwnIndex();
  if (at >= n * num_hashes) return;
  const float* x = vectors + at / num_hashes * family.width;
  const int64_t first = (first_hash + at % num_hashes) * family.window;
  float best = -INFINITY;
  int32_t place = 0;
  bool is_empty = true;
  for (int32_t i = 0; i < family.window; ++i) {
    const int32_t element = family.elements[first + i];
    if (element < 0 || element >= family.width) {
      atomicMin(&faults->element, static_cast<unsigned long long>(first + i));
      continue;
    }
    const float value = x[element];
    if (value > best) place = i;
    best = value > best ? value : best;
    is_empty = is_empty && value == 0;
  }
  winners[at] = is_empty ? -1 : place;
}

// The winner of a hash of a row, or of its nearest neighbour.
__device__ int32_t FilledWinner(const int32_t* winners, int64_t hash, int64_t bins) {
  if (winners[hash] >= 0) return winners[hash];
  if (bins == 1) return 0;
  const int64_t bin = hash % bins;
  const int32_t* of_group = winners + hash - bin;
  for (int64_t d = 1; 2 * d <= bins; ++d) {
    const int32_t later = of_group[(bin + d) % bins];
    if (later >= 0) return later;
    const int32_t earlier = of_group[(bin - d + bins) % bins];
    if (earlier >= 0) return earlier;
  }
  return -1;
}

// A thread for each row and table.
__global__ void __launch_bounds__(kThreads)
    PackCodes(HashFamily family, int64_t begin, int64_t end, HashedRows rows, int64_t first,
              int64_t n, HashMemory memory, CodePlaces places) {
  const int64_t at = OwnIndex(), num_tables = end - begin;
  if (at >= n * num_tables) return;
  const int64_t i = at / num_tables, t = at % num_tables;
  const int64_t first_hash = family.FirstHash(begin);
  const int64_t values = i * (family.LastHash(end) - first_hash);
  const int64_t k = family.hashes_per_table, hash = (begin + t) * k - first_hash;
  const bool by_winner = family.elements != nullptr;
  int32_t code = 0;
  bool has_code = memory.ranges[i] >= 0;
  for (int64_t j = k - 1; j >= 0; --j) {
    int32_t digit;
    if (by_winner) {
      digit =
          FilledWinner(static_cast<const int32_t*>(memory.values) + values, hash + j, family.bins);
    } else {
      digit = static_cast<const float*>(memory.values)[values + hash + j] > 0 ? 1 : 0;
    }
    has_code = has_code && digit >= 0;
    code = code * static_cast<int32_t>(by_winner ? family.window : 2) + digit;
  }
  code += memory.ranges[i] * static_cast<int32_t>(family.BucketsOfRange());
  const int64_t row = rows.ids == nullptr ? first + i : rows.ids[first + i];
  places.codes[row * places.of_row + t * places.of_table] = has_code ? code : kNoCode;
}

}  // namespace

HashMemory TakeHashMemory(const HashFamily& family, int64_t begin, int64_t end, int64_t n,
                          Scratch* scratch) {
  const int64_t num_hashes = family.LastHash(end) - family.FirstHash(begin);
  HashMemory memory;
  memory.rows = std::clamp<int64_t>(kMostFloats / (family.width + num_hashes + 1), 1,
                                    std::max<int64_t>(n, 1));
  memory.vectors = scratch->Take<float>(memory.rows * family.width);
  memory.ranges = scratch->Take<int32_t>(memory.rows);
  memory.values = scratch->Take<float>(memory.rows * num_hashes);
  return memory;
}

Error HashCodes(CUstream_st* stream, const HashFamily& family, int64_t begin, int64_t end,
                const HashedRows& rows, const HashMemory& memory, const CodePlaces& places,
                HashFaults* faults) {
  const int64_t first_hash = family.FirstHash(begin);
  const int64_t num_hashes = family.LastHash(end) - first_hash;
  for (int64_t first = 0; first < rows.size; first += memory.rows) {
    const int64_t n = std::min(memory.rows, rows.size - first);
    TFX_LAUNCH_BLOCKS(CopyRows, BlocksOf(n, kWarps), stream, family, rows, first, n, memory.vectors,
                      memory.ranges, faults);
    if (family.elements != nullptr) {
      TFX_LAUNCH_THREADS(FindWinners, n * num_hashes, stream, family, first_hash, num_hashes,
                         memory.vectors, n, static_cast<int32_t*>(memory.values), faults);
    } else {
      Error error = Multiply(stream, Precision::kFloat32, {memory.vectors, false},
                             {family.planes + first_hash * family.width, true}, n, num_hashes,
                             family.width, false, static_cast<float*>(memory.values));
      if (!error.ok()) return error;
    }
    TFX_LAUNCH_THREADS(PackCodes, n * (end - begin), stream, family, begin, end, rows, first, n,
                       memory, places);
  }
  return LastError();
}

void ClearFaults(CUstream_st* stream, HashFaults* faults) {
  ForgetErrors();
  TFX_LAUNCH(SetFaults, dim3(1), dim3(1), 0, stream, faults);
}

}  // namespace tfx::core::gpu
