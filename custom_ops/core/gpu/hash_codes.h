// SPDX-License-Identifier: Apache-2.0
//
// Codes of rows on a GPU. With winners they equal the processor's, bit for bit. With planes, the
// sign of a product may differ if it is as small as its rounding errors, since sums are in another
// order. With radii, the range of a row may differ if its length is at the limit.

#ifndef TFX_LARGEOUT_CORE_GPU_HASH_CODES_H_
#define TFX_LARGEOUT_CORE_GPU_HASH_CODES_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/gpu/error.h"
#include "core/gpu/hash_faults.h"
#include "core/gpu/scratch.h"
#include "core/hash_family.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The hashed rows, on the device: rows ids[0] to ids[n - 1] of a matrix, or its first n.
struct HashedRows {
  LayerWeights weights;  // its width is the family's, or with radii 2 less
  const int32_t* ids;    // null: the first rows
  int64_t size;          // n
};

// The output: the code of row r for table t is at codes[r * of_row + (t - begin) * of_table].
struct CodePlaces {
  int32_t* codes;
  int64_t of_row;
  int64_t of_table;
};

// Memory for some rows at a time.
struct HashMemory {
  int64_t rows;    // at a time
  float* vectors;  // [rows, width]
  int32_t* ranges;
  void* values;  // [rows, hashes]: winners, or products with planes
};

// Allocates memory for codes of n rows for tables [begin, end): 64 MiB, or the memory of one row.
HashMemory TakeHashMemory(const HashFamily& family, int64_t begin, int64_t end, int64_t n,
                          Scratch* scratch);

// Starts to compute codes for tables [begin, end), 0 <= begin < end <= L, and sets *faults:
// elements, and the first row that is not finite, whose codes are undefined. Returns an error.
Error HashCodes(CUstream_st* stream, const HashFamily& family, int64_t begin, int64_t end,
                const HashedRows& rows, const HashMemory& memory, const CodePlaces& places,
                HashFaults* faults);

// Starts to set *faults, on the device, to kNoFaults.
void ClearFaults(CUstream_st* stream, HashFaults* faults);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_HASH_CODES_H_
