// SPDX-License-Identifier: Apache-2.0
//
// Codes of rows on a GPU. By winners they are those of the processor, to the bit; so they are by
// planes, but for a product with a plane whose rounding errors, of sums in another order, are as
// great as itself: its sign may differ. Likewise with radii a row whose length is that of a range.

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

// What is hashed, all on the device: rows ids[0] to ids[n - 1] of a matrix, or its first n.
struct HashedRows {
  LayerWeights weights;  // its width is that of the family, or with radii 2 less
  const int32_t* ids;    // null: the first rows
  int64_t size;          // n
};

// Where codes go: that of row r for table t to codes[r * of_row + (t - begin) * of_table].
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

// Takes memory for codes of n rows for tables [begin, end): 64 MiB, or what a row needs.
HashMemory TakeHashMemory(const HashFamily& family, int64_t begin, int64_t end, int64_t n,
                          Scratch* scratch);

// Begins to compute codes for tables [begin, end), 0 <= begin < end <= L, and sets what it finds
// in *faults: elements, and the first row that is not finite, whose codes have no meaning.
// Returns what is wrong.
Error HashCodes(CUstream_st* stream, const HashFamily& family, int64_t begin, int64_t end,
                const HashedRows& rows, const HashMemory& memory, const CodePlaces& places,
                HashFaults* faults);

// Begins to set *faults, on the device, to kNoFaults.
void ClearFaults(CUstream_st* stream, HashFaults* faults);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_HASH_CODES_H_
