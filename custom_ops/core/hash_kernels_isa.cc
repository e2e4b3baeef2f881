// SPDX-License-Identifier: Apache-2.0
//
// Compiled once an instruction set: see cmake/instruction_sets.cmake for what may be included.

#include "core/hash_kernels_isa.h"

#include "core/simd.h"

namespace tfx::core::TFX_ISA {
namespace {

void Winners(const float* columns, const int32_t* elements, int64_t window, int64_t num_hashes,
             int32_t* winners) {
  for (int64_t j = 0; j < num_hashes; ++j, elements += window, winners += kLanes) {
    Floats best = Load(columns + elements[0] * int64_t{kLanes});
    Ints place = {};
    Ints seen = reinterpret_cast<Ints>(best);
    for (int32_t i = 1; i < window; ++i) {
      const Floats x = Load(columns + elements[i] * int64_t{kLanes});
      const Ints greater = x > best;
      best = greater ? x : best;
      place = greater ? Ints{} + i : place;
      seen |= reinterpret_cast<Ints>(x);
    }
    Store(winners, (seen & 0x7fffffff) == 0 ? Ints{} - 1 : place);
  }
}

bool PackWinners(const int32_t* winners, int64_t hashes, int64_t window, int32_t* codes) {
  Ints code = {}, sign = {};
  for (int64_t k = hashes - 1; k >= 0; --k) {
    const Ints winner = Load(winners + k * kLanes);
    sign |= winner;
    code = code * static_cast<int32_t>(window) + winner;
  }
  Store(codes, code);
  return !AnyTrue(sign < 0);
}

void Positive(const float* x, int64_t n, uint64_t* bits) {
  for (int64_t i = 0; i < n; i += 64) {
    uint64_t word = 0;
    for (int64_t lane = 0; lane < 64 && i + lane < n; lane += kLanes) {
      const int64_t rest = n - i - lane;
      const Floats some = rest >= kLanes ? Load(x + i + lane) : LoadSome(x + i + lane, rest);
      word |= static_cast<uint64_t>(Greater(some, Floats{})) << lane;
    }
    bits[i / 64] = word;
  }
}

}  // namespace

const HashKernels kHashKernels = {kLanes, Winners, PackWinners, Positive};

}  // namespace tfx::core::TFX_ISA
