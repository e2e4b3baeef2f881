// SPDX-License-Identifier: Apache-2.0
//
// Loops over hash functions of vectors, compiled once per instruction set.

#ifndef TFX_LARGEOUT_CORE_HASH_KERNELS_ISA_H_
#define TFX_LARGEOUT_CORE_HASH_KERNELS_ISA_H_

#include <stdint.h>

#include "core/for_sets.h"

namespace tfx::core {

struct HashKernels {
  int64_t lanes;  // vectors processed in parallel

  // Winner-take-all codes of `lanes` vectors, given as columns [D, lanes]. winners[j, lane] is the
  // position of the greatest among the coordinates elements[j] (ties: the first), or -1 if all are
  // 0.
  void (*winners)(const float* columns, const int32_t* elements, int64_t window, int64_t num_hashes,
                  int32_t* winners);

  // codes[lane] = sum_k winners[k, lane] * window^k over `hashes` rows, and whether none of these
  // winners is -1.
  bool (*pack_winners)(const int32_t* winners, int64_t hashes, int64_t window, int32_t* codes);

  // Bit i of `bits` is whether x[i] > 0. Bits after the n-th are 0, up to a multiple of 64.
  void (*positive)(const float* x, int64_t n, uint64_t* bits);
};

TFX_FOR_SETS(extern const HashKernels kHashKernels)

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_HASH_KERNELS_ISA_H_
