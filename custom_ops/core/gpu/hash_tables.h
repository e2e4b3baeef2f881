// SPDX-License-Identifier: Apache-2.0
//
// Hash tables that follow the rows of a matrix on a GPU: those of the processor for the same codes.

#ifndef TFX_LARGEOUT_CORE_GPU_HASH_TABLES_H_
#define TFX_LARGEOUT_CORE_GPU_HASH_TABLES_H_

#include <cstdint>

#include "core/gpu/error.h"
#include "core/gpu/hash_faults.h"
#include "core/hash_tables.h"

struct CUstream_st;

namespace tfx::core::gpu {

// What core::UpdateTables takes; all arrays are on the device.
struct TableUpdate {
  HashFamily family;
  LayerWeights weights;
  RowTimes times;
  int64_t begin, end;  // tables, begin < end
  int32_t now;
  HashTables tables;
};

// What an update says of itself before it changes anything.
struct TableVerdict {
  HashFaults faults;
  int32_t since;         // rows marked after have changed
  uint32_t num_changed;  // rows
  unsigned long long moved;
};

// Begins to mark rows ids[0] to ids[n - 1] with the time `now`; an id that is no row is passed
// over. Returns what is wrong.
Error MarkRows(CUstream_st* stream, const int64_t* ids, int64_t n, int32_t now, int64_t num_classes,
               int32_t* touched_at);

// 4 C bytes a table, 28 C, and 64 MiB or what a row needs.
int64_t TableUpdateScratchBytes(const TableUpdate& update);

inline const TableVerdict* TableVerdictIn(void* scratch) {
  return static_cast<const TableVerdict*>(scratch);
}

// The parts of an update, with the same scratch. Each begins; its end is to be waited for where the
// verdict is read. They return what is wrong.

// Finds the rows that have changed. Sets num_changed of the verdict, and the fault of a radius.
Error FindChangedRows(CUstream_st* stream, const TableUpdate& update, void* scratch);

// Finds in which buckets classes come to be. Sets the other faults of the verdict, a corrupt table
// also where all rows have changed, and how many classes have moved.
// REQUIRES: no radius is at fault; num_changed is what was found.
Error HashChangedRows(CUstream_st* stream, const TableUpdate& update, int64_t num_changed,
                      void* scratch);

// Writes the tables.
// REQUIRES: nothing is refused.
Error WriteTables(CUstream_st* stream, const TableUpdate& update, void* scratch);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_HASH_TABLES_H_
