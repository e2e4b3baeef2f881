// SPDX-License-Identifier: Apache-2.0
//
// Loops over hash functions of vectors, compiled once an instruction set.

#ifndef TFX_LARGEOUT_CORE_HASH_KERNELS_ISA_H_
#define TFX_LARGEOUT_CORE_HASH_KERNELS_ISA_H_

#include <stdint.h>

#include "core/for_sets.h"

namespace tfx::core {

struct HashKernels {
  int64_t lanes;  // vectors that are worked on side by side

  // Winner-take-all codes of `lanes` vectors, given as columns [D, lanes]. winners[j, lane] is the
  // place, among the coordinates elements[j], of the greatest; the first of equal ones; or -1 if
  // all of them are 0.
  void (*winners)(const float* columns, const int32_t* elements, int64_t window, int64_t num_hashes,
                  int32_t* winners);

  // codes[lane] = sum_k winners[k, lane] * window^k over `hashes` rows, and whether all of these
  // winners are there.
  bool (*pack_winners)(const int32_t* winners, int64_t hashes, int64_t window, int32_t* codes);

  // Bit i of `bits` says whether x[i] > 0. Bits behind the n-th are 0, up to a multiple of 64.
  void (*positive)(const float* x, int64_t n, uint64_t* bits);
};

TFX_FOR_SETS(extern const HashKernels kHashKernels)

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_HASH_KERNELS_ISA_H_
