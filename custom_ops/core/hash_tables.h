// SPDX-License-Identifier: Apache-2.0
//
// L hash tables over the C rows of a matrix. A table is the list of all classes, sorted by bucket:
// buckets have no size limit, and a bucket is contiguous in memory.

#ifndef TFX_LARGEOUT_CORE_HASH_TABLES_H_
#define TFX_LARGEOUT_CORE_HASH_TABLES_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/execution.h"
#include "core/hash_family.h"

namespace tfx::core {

// Bucket b of table t holds classes entries[t, starts[t, b]] to entries[t, starts[t, b + 1] - 1],
// in rising order. After the last bucket, entries are -1, one per class without a code.
struct HashTables {
  int32_t* entries;     // [L, C]
  int32_t* starts;      // [L, num_buckets + 1]
  int64_t num_tables;   // L
  int64_t num_classes;  // C, below 2^31
  int64_t num_buckets;

  int32_t* Entries(int64_t table) const { return entries + table * num_classes; }
  int32_t* Starts(int64_t table) const { return starts + table * (num_buckets + 1); }
};

// Rows with touched_at[c] > built_at[t] have changed since a table was built. A built_at below -1
// or after the time of the call counts as -1.
struct RowTimes {
  int32_t* touched_at;  // [C]
  int32_t* built_at;    // [L]
};

// A fault of tables, or of the rows they are built from; `table` is -1 for the latter.
struct HashFault {
  int64_t table = -1;
  int64_t row = -1;

  explicit operator bool() const { return table >= 0 || row >= 0; }
};

// Marks rows as changed `now`; negative ones are skipped.
void Touch(const int64_t* rows, int64_t n, int32_t now, const RowTimes& times);

// Marks rows `touched` as changed now, and updates tables [begin, end): hashes the changed rows and
// puts each into its bucket. Sets built_at of these tables to `now`, and adds to *moved the number
// of classes that changed their bucket, over all of these tables.
//
// The result equals building from scratch: it does not depend on the order of updates, nor on the
// number of threads.
//
// Cost: O(D) reading and O(D + K) hashing per changed row and table, O(C) moves per table.
//
// Memory: 4 bytes per table and class. If it can't be allocated, nothing is changed or marked.
//
// Returns a fault, if any, with the lowest row or table: a changed row is not finite, or a table is
// corrupt (its buckets are not consecutive parts of it, or it has an entry that is not a class, or
// a class twice). Then nothing is changed. If all rows have changed, a corrupt table is rewritten,
// and all its classes count as moved.
HashFault UpdateTables(const HashFamily& family, const LayerWeights& weights, const RowTimes& times,
                       int64_t begin, int64_t end, int32_t now, const HashTables& tables,
                       const Execution& execution, int64_t* moved, const int64_t* touched = nullptr,
                       int64_t num_touched = 0);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_HASH_TABLES_H_
