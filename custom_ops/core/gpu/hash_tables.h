// SPDX-License-Identifier: Apache-2.0
//
// Hash tables that follow the rows of a matrix on a GPU: as on the processor for the same codes.

#ifndef TFX_LARGEOUT_CORE_GPU_HASH_TABLES_H_
#define TFX_LARGEOUT_CORE_GPU_HASH_TABLES_H_

#include <cstdint>

#include "core/gpu/error.h"
#include "core/gpu/hash_faults.h"
#include "core/hash_tables.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The arguments of core::UpdateTables; all arrays are on the device.
struct TableUpdate {
  HashFamily family;
  LayerWeights weights;
  RowTimes times;
  int64_t begin, end;  // tables, begin < end
  int32_t now;
  HashTables tables;
};

// The findings of an update before it changes anything.
struct TableVerdict {
  HashFaults faults;
  int32_t since;         // rows marked later have changed
  uint32_t num_changed;  // number of changed rows
  unsigned long long moved;
};

// Starts to mark rows ids[0] to ids[n - 1] with the time `now`; an id that is not a row is skipped.
// Returns an error.
Error MarkRows(CUstream_st* stream, const int64_t* ids, int64_t n, int32_t now, int64_t num_classes,
               int32_t* touched_at);

// 4 C bytes per table, 28 C, and 64 MiB or the memory of one row.
int64_t TableUpdateScratchBytes(const TableUpdate& update);

inline const TableVerdict* TableVerdictIn(void* scratch) {
  return static_cast<const TableVerdict*>(scratch);
}

// The parts of an update, with the same scratch. Each only starts work: wait for its end before
// reading the verdict. They return an error.

// Finds the rows that have changed. Sets num_changed of the verdict, and the fault of a radius.
Error FindChangedRows(CUstream_st* stream, const TableUpdate& update, void* scratch);

// Computes the new buckets of classes. Sets the other faults of the verdict (a corrupt table even
// if all rows have changed), and the number of moved classes.
// REQUIRES: no radius has a fault; num_changed is from the first part.
Error HashChangedRows(CUstream_st* stream, const TableUpdate& update, int64_t num_changed,
                      void* scratch);

// Writes the tables.
// REQUIRES: there is no fault.
Error WriteTables(CUstream_st* stream, const TableUpdate& update, void* scratch);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_HASH_TABLES_H_
