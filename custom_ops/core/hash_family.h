// SPDX-License-Identifier: Apache-2.0
//
// Locality-sensitive hash functions, K for each of L tables, and the codes that they give vectors.

#ifndef TFX_LARGEOUT_CORE_HASH_FAMILY_H_
#define TFX_LARGEOUT_CORE_HASH_FAMILY_H_

#include <atomic>
#include <cstdint>

#include "core/candidate_batch.h"
#include "core/execution.h"

namespace tfx::core {

// Hash j of a vector x is
// - the place of the greatest of x[elements[j]] (winner-take-all), or
// - whether <planes[j], x> > 0.
// Hashes [t K, (t + 1) K) belong to table t. Its code is the number with these digits, the first
// one the lowest, to the base `window` or 2.
//
// With radii, rows w with a bias b are hashed as (w, b, sqrt(max(0, R^2 - |w|^2 - b^2))), R being
// the smallest radius that is at least |(w, b)|, or the greatest. So with (h, 1, 0) they have the
// inner product <h, w> + b, and those with the same R the same length, but for rows longer than all
// radii. They are a range: range r, with the radius radii[r], has buckets of its own, from r v^K
// on, v being the base.
//
// With `bins` > 1, hashes [g bins, (g + 1) bins) look at the parts of one permutation, and a hash
// whose elements are all 0 takes the value of the nearest one in the circle of these that has
// another (the later one of two). Without, it is 0.
struct HashFamily {
  const int32_t* elements;  // [num_hashes, window], in [0, D); null: by planes
  const float* planes;      // [num_hashes, D]
  int64_t num_hashes;       // at least K L; a multiple of `bins`
  int64_t window;           // at least 2
  int64_t bins;
  int64_t width;             // D, of the vectors that are hashed
  int64_t hashes_per_table;  // K
  int64_t num_tables;        // L
  const float* radii;        // [num_radii], falling
  int64_t num_radii;         // 0: rows are hashed as they are

  // These are constexpr so that nvcc takes them for a device, too.

  // window^K, or 2^K.
  constexpr int64_t BucketsOfRange() const {
    int64_t buckets = 1;
    for (int64_t k = 0; k < hashes_per_table; ++k) buckets *= elements != nullptr ? window : 2;
    return buckets;
  }
  // Of a table, in all ranges.
  constexpr int64_t NumBuckets() const {
    return (num_radii > 0 ? num_radii : 1) * BucketsOfRange();
  }

  // The hashes that tables [begin, end) need, whole groups of bins: the first, and the one behind
  // the last.
  constexpr int64_t FirstHash(int64_t begin) const {
    return begin * hashes_per_table / bins * bins;
  }
  constexpr int64_t LastHash(int64_t end) const {
    const int64_t last = (end * hashes_per_table + bins - 1) / bins * bins;
    return last < num_hashes ? last : num_hashes;
  }
};

// Codes are at least 0; this one says that a vector has none: it is 0, or all the elements that the
// table's hashes and their neighbours look at are.
constexpr int32_t kNoCode = -1;

// Sets `place` to `row` unless it holds a lower one; -1 stands for none. So the first of what is
// wrong is named, whatever the order of tasks.
inline void NoteFirst(int64_t row, std::atomic<int64_t>* place) {
  int64_t known = place->load();
  while ((known < 0 || row < known) && !place->compare_exchange_weak(known, row)) {
  }
}

// Computes codes for tables [begin, end) of a family. Objects are cheap but for the planes, which
// are put into panels.
class Hasher {
 public:
  // REQUIRES: 0 <= begin < end <= L; everything outlives this object.
  Hasher(const HashFamily& family, int64_t begin, int64_t end, const Execution& execution);

  // Rows that are best hashed in one call.
  static constexpr int64_t kRows = 64;

  // Room that a call of Codes needs, in floats.
  int64_t ScratchSize() const;

  // codes[(t - begin) * stride + i] is the code of rows[ids[i]], 0 <= i < n, for table t. Returns
  // the first i of a row that is not finite, or n; then codes have no meaning.
  // REQUIRES: 0 <= n <= kRows; rows.width is that of the family, or with radii 2 less.
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

// codes[i, t] is the code of rows[i] for table t, over all rows and tables. Returns the first row
// that is not finite, or -1; in the first case codes have no meaning.
int64_t HashCodes(const HashFamily& family, const LayerWeights& rows, const Execution& execution,
                  int32_t* codes);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_HASH_FAMILY_H_
