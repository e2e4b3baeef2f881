// SPDX-License-Identifier: Apache-2.0
//
// Locality-sensitive hash functions, K for each of L tables, and the codes of vectors.

#ifndef TFX_LARGEOUT_CORE_HASH_FAMILY_H_
#define TFX_LARGEOUT_CORE_HASH_FAMILY_H_

#include <atomic>
#include <cstdint>

#include "core/candidate_batch.h"
#include "core/execution.h"

namespace tfx::core {

// Hash j of a vector x is
// - the position of the greatest of x[elements[j]] (winner-take-all), or
// - whether <planes[j], x> > 0.
// Hashes [t K, (t + 1) K) belong to table t. Its code is the number with these digits, the first
// one the lowest, to the base `window` or 2.
//
// With radii, rows w with a bias b are hashed as (w, b, sqrt(max(0, R^2 - |w|^2 - b^2))), where R
// is the smallest radius of at least |(w, b)|, or the greatest. So their inner product with (h, 1,
// 0) is <h, w> + b, and rows with the same R have the same length, except for rows longer than all
// radii. They form a range: range r, with the radius radii[r], has separate buckets, from r v^K on,
// where v is the base.
//
// With `bins` > 1, hashes [g bins, (g + 1) bins) use the parts of one permutation, and a hash whose
// elements are all 0 takes the value of the nearest one in this circle that is not empty (ties: the
// later one). Otherwise its value is 0.
struct HashFamily {
  const int32_t* elements;  // [num_hashes, window], in [0, D); null: by planes
  const float* planes;      // [num_hashes, D]
  int64_t num_hashes;       // at least K L; a multiple of `bins`
  int64_t window;           // at least 2
  int64_t bins;
  int64_t width;             // D, of the hashed vectors
  int64_t hashes_per_table;  // K
  int64_t num_tables;        // L
  const float* radii;        // [num_radii], falling
  int64_t num_radii;         // 0: rows are hashed as they are

  // These are constexpr so that nvcc compiles them for a device, too.

  // window^K, or 2^K.
  constexpr int64_t BucketsOfRange() const {
    int64_t buckets = 1;
    for (int64_t k = 0; k < hashes_per_table; ++k) buckets *= elements != nullptr ? window : 2;
    return buckets;
  }
  // The buckets of a table, in all ranges.
  constexpr int64_t NumBuckets() const {
    return (num_radii > 0 ? num_radii : 1) * BucketsOfRange();
  }

  // The hashes for tables [begin, end), in whole groups of bins: the first, and the one after the
  // last.
  constexpr int64_t FirstHash(int64_t begin) const {
    return begin * hashes_per_table / bins * bins;
  }
  constexpr int64_t LastHash(int64_t end) const {
    const int64_t last = (end * hashes_per_table + bins - 1) / bins * bins;
    return last < num_hashes ? last : num_hashes;
  }
};

// Codes are at least 0. This value means that a vector has no code: it is 0, or all elements of the
// table's hashes and their neighbours are.
constexpr int32_t kNoCode = -1;

// Sets `place` to `row` unless it has a lower row; -1: none. So the first fault is reported, in any
// order of tasks.
inline void NoteFirst(int64_t row, std::atomic<int64_t>* place) {
  int64_t known = place->load();
  while ((known < 0 || row < known) && !place->compare_exchange_weak(known, row)) {
  }
}

// Computes codes for tables [begin, end) of a family. Objects are cheap except for the planes,
// which are copied to panels.
class Hasher {
 public:
  // REQUIRES: 0 <= begin < end <= L; everything outlives this object.
  Hasher(const HashFamily& family, int64_t begin, int64_t end, const Execution& execution);

  // The best number of rows for one call.
  static constexpr int64_t kRows = 64;

  // The room that a call of Codes needs, in floats.
  int64_t ScratchSize() const;

  // codes[(t - begin) * stride + i] is the code of rows[ids[i]], 0 <= i < n, for table t. Returns
  // n, or the first i with a row that is not finite; then codes are undefined.
  // REQUIRES: 0 <= n <= kRows; rows.width is the family's, or with radii 2 less.
  int64_t Codes(const LayerWeights& rows, const int32_t* ids, int64_t n, float* scratch,
                int32_t* codes, int64_t stride) const;

 private:
  // Returns the range.
  int32_t CopyRow(const LayerWeights& rows, int64_t row, float* vector) const;
  void WinnerCodes(const float* vectors, int64_t n, float* scratch, int32_t* codes,
                   int64_t stride) const;
  void FillEmpty(int32_t* winners, int32_t* before) const;
  void PlaneCodes(const float* vectors, int64_t n, float* scratch, int32_t* codes,
                  int64_t stride) const;

  const HashFamily& family_;
  const int64_t begin_, end_;
  const Execution execution_;
  const int64_t first_hash_, last_hash_;
  float* panels_ = nullptr;  // of the planes
};

// codes[i, t] is the code of rows[i] for table t, over all rows and tables. Returns -1, or the
// first row that is not finite; then codes are undefined.
int64_t HashCodes(const HashFamily& family, const LayerWeights& rows, const Execution& execution,
                  int32_t* codes);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_HASH_FAMILY_H_
