// SPDX-License-Identifier: Apache-2.0
//
// Where classes come to be is found for all tables, before the first one is written: classes whose
// rows have changed by their codes, others by reading in which bucket they are. Then classes are
// sorted by bucket.

#include "core/gpu/hash_tables.h"

#include <algorithm>

#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/hash_codes.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/radix_sort.h"
#include "core/gpu/scratch.h"
#include "core/gpu/tiles.h"
#include "core/radix_sort.h"

namespace tfx::core::gpu {
namespace {

constexpr int32_t kNever = -1;
constexpr int32_t kNowhere = -1;  // instead of a bucket

// Device memory.
struct Memory {
  Memory(const TableUpdate& update, Scratch* scratch) {
    const int64_t num_classes = update.tables.num_classes, num_tables = update.end - update.begin;
    verdict = scratch->Take<TableVerdict>(1);
    is_corrupt = scratch->Take<uint32_t>(num_tables);
    changed = scratch->Take<int32_t>(num_classes);
    counts = scratch->Take<uint32_t>(BlocksOf(num_classes, kTile));
    codes = scratch->Take<int32_t>(num_tables * num_classes);
    before = scratch->Take<int32_t>(num_classes);
    sort = TakeRadixSort(num_classes, scratch);
    hashes = TakeHashMemory(update.family, update.begin, update.end, num_classes, scratch);
  }

  TableVerdict* verdict;
  uint32_t* is_corrupt;  // [tables]
  int32_t* changed;      // [C]: the rows that have
  uint32_t* counts;      // of tiles
  int32_t* codes;        // [tables, C]
  int32_t* before;       // [C]: the bucket that a class was in, of one table
  RadixSort sort;
  HashMemory hashes;
};

// A thread for each id.
__global__ void __launch_bounds__(kThreads)
    Mark(const int64_t* ids, int64_t n, int32_t now, int64_t num_classes, int32_t* touched_at) {
  const int64_t i = OwnIndex();
  if (i < n && ids[i] >= 0 && ids[i] < num_classes) touched_at[ids[i]] = now;
}

// A block: the verdict before anything is known but times and radii.
__global__ void __launch_bounds__(kThreads) BeginVerdict(TableUpdate update, Memory memory) {
  for (int64_t t = threadIdx.x; t < update.end - update.begin; t += kThreads) {
    memory.is_corrupt[t] = 0;
  }
  if (threadIdx.x != 0) return;
  // An impossible time means a damaged table: treated as never built.
  int32_t since = update.now;
  for (int64_t t = update.begin; t < update.end; ++t) {
    const int32_t time = update.times.built_at[t];
    const int32_t built = time < kNever || time > update.now ? kNever : time;
    since = built < since ? built : since;
  }
  HashFaults faults = kNoFaults;
  const float* radii = update.family.radii;
  for (int64_t i = update.family.num_radii; i-- > 0;) {
    const float square = radii[i] * radii[i];
    const bool falls = i == 0 || radii[i] < radii[i - 1];
    if (!(radii[i] > 0 && square > 0 && isfinite(square) && falls)) faults.radius = i;
  }
  *memory.verdict = {faults, since, 0, 0};
}

__device__ bool HasChanged(const TableUpdate& update, const Memory& memory, int64_t row) {
  return row < update.tables.num_classes && update.times.touched_at[row] > memory.verdict->since;
}

// A block for each tile.
__global__ void __launch_bounds__(kThreads) CountChanged(TableUpdate update, Memory memory) {
  TFX_SHARED_MEMORY(shared);
  uint32_t count = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t row = int64_t{blockIdx.x} * kTile + round * kThreads + threadIdx.x;
    if (HasChanged(update, memory, row)) ++count;
  }
  count = OfBlock(count, Sum(), shared);
  if (threadIdx.x == 0) memory.counts[blockIdx.x] = count;
}

// A block per tile; counts are sums over earlier tiles.
__global__ void __launch_bounds__(kThreads) ListChanged(TableUpdate update, Memory memory) {
  TFX_SHARED_MEMORY(shared);
  uint32_t number = memory.counts[blockIdx.x];
  for (int round = 0; round < kRounds; ++round) {
    const int64_t row = int64_t{blockIdx.x} * kTile + round * kThreads + threadIdx.x;
    const bool has_changed = HasChanged(update, memory, row);
    uint32_t total;
    const uint32_t before =
        SumBefore(has_changed ? 1 : 0, reinterpret_cast<uint32_t*>(shared), &total);
    if (has_changed) memory.changed[number + before] = static_cast<int32_t>(row);
    number += total;
  }
}

__device__ void SayCorrupt(const TableUpdate& update, const Memory& memory, int64_t t) {
  memory.is_corrupt[t] = 1;
  atomicMin(&memory.verdict->faults.table, static_cast<unsigned long long>(update.begin + t));
}

// A thread for each class, entry and bucket of table begin + t.
__global__ void __launch_bounds__(kThreads)
    CheckTable(TableUpdate update, Memory memory, int64_t t) {
  const HashTables& tables = update.tables;
  const int64_t i = OwnIndex(), num_classes = tables.num_classes, end = tables.num_buckets;
  const int32_t* starts = tables.starts + (update.begin + t) * (end + 1);
  bool good = i != 0 || (starts[0] == 0 && starts[end] <= num_classes);
  if (i < end) good = good && starts[i] <= starts[i + 1];
  if (i < num_classes) {
    memory.before[i] = kNowhere;
    const int32_t c = tables.entries[(update.begin + t) * num_classes + i];
    good = good && (i >= starts[end] || (c >= 0 && c < num_classes));
  }
  if (!good) SayCorrupt(update, memory, t);
}

// A thread for each entry: says of its class in which bucket it is. A table that lists a class
// twice turns out to be corrupt.
__global__ void __launch_bounds__(kThreads)
    ReadTable(TableUpdate update, Memory memory, int64_t t) {
  const HashTables& tables = update.tables;
  const int64_t place = OwnIndex(), num_classes = tables.num_classes;
  const int32_t* starts = tables.starts + (update.begin + t) * (tables.num_buckets + 1);
  if (place >= num_classes || place >= starts[tables.num_buckets]) return;
  int64_t bucket = 0, end = tables.num_buckets;  // starts[bucket] <= place < starts[end]
  while (end - bucket > 1) {
    const int64_t middle = (bucket + end) / 2;
    (starts[middle] <= place ? bucket : end) = middle;
  }
  const int32_t c = tables.entries[(update.begin + t) * num_classes + place];
  if (c < 0 || c >= num_classes) return;  // is known
  const int32_t other = atomicExch(memory.before + c, static_cast<int32_t>(bucket));
  if (other != kNowhere) SayCorrupt(update, memory, t);
}

// A thread per class: its new bucket; counts moved classes.
__global__ void __launch_bounds__(kThreads)
    FindBuckets(TableUpdate update, Memory memory, int64_t t) {
  TFX_SHARED_MEMORY(shared);
  const int64_t c = OwnIndex(), num_classes = update.tables.num_classes;
  uint32_t moves = 0;
  if (c < num_classes) {
    const int32_t before = memory.is_corrupt[t] != 0 ? kNowhere : memory.before[c];
    int32_t* const code = memory.codes + t * num_classes + c;
    if (!HasChanged(update, memory, c)) *code = before;
    moves = *code >= 0 && *code != before ? 1 : 0;
  }
  moves = OfBlock(moves, Sum(), shared);
  if (threadIdx.x == 0) {
    atomicAdd(&memory.verdict->moved, static_cast<unsigned long long>(moves));
  }
}

// A thread per class. Classes without a bucket go to the end.
__global__ void __launch_bounds__(kThreads)
    TakeCodes(const int32_t* codes, int64_t num_classes, int64_t num_buckets, uint64_t* entries) {
  const int64_t c = OwnIndex();
  if (c >= num_classes) return;
  const auto code = static_cast<uint32_t>(codes[c] < 0 ? num_buckets : codes[c]);
  entries[c] = EntryOf(code, static_cast<uint32_t>(c));
}

// A thread for each entry and bucket of table begin + t.
__global__ void __launch_bounds__(kThreads)
    WriteTable(TableUpdate update, const uint64_t* sorted, int64_t t) {
  const HashTables& tables = update.tables;
  const int64_t i = OwnIndex(), num_classes = tables.num_classes;
  if (i < num_classes) {
    const bool is_in = KeyOf(sorted[i]) < tables.num_buckets;
    tables.entries[(update.begin + t) * num_classes + i] =
        is_in ? static_cast<int32_t>(sorted[i] & 0x7fffffff) : -1;
  }
  if (i <= tables.num_buckets) {
    int64_t first = 0,
            end = num_classes;  // the first entry of bucket i or after is in [first, end]
    while (first < end) {
      const int64_t middle = (first + end) / 2;
      if (KeyOf(sorted[middle]) < i) {
        first = middle + 1;
      } else {
        end = middle;
      }
    }
    tables.starts[(update.begin + t) * (tables.num_buckets + 1) + i] = static_cast<int32_t>(first);
  }
  if (i == 0) update.times.built_at[update.begin + t] = update.now;
}

}  // namespace

Error MarkRows(CUstream_st* stream, const int64_t* ids, int64_t n, int32_t now, int64_t num_classes,
               int32_t* touched_at) {
  ForgetErrors();
  TFX_LAUNCH_THREADS(Mark, n, stream, ids, n, now, num_classes, touched_at);
  return LastError();
}

int64_t TableUpdateScratchBytes(const TableUpdate& update) {
  Scratch scratch(nullptr);
  Memory(update, &scratch);
  return scratch.bytes();
}

Error FindChangedRows(CUstream_st* stream, const TableUpdate& update, void* scratch) {
  ForgetErrors();
  Scratch dealt(scratch);
  const Memory memory(update, &dealt);
  constexpr size_t kOfSums = kWarps * sizeof(uint64_t);
  const int64_t num_tiles = BlocksOf(update.tables.num_classes, kTile);
  TFX_LAUNCH(BeginVerdict, dim3(1), dim3(kThreads), 0, stream, update, memory);
  TFX_LAUNCH(CountChanged, Grid(num_tiles), dim3(kThreads), kOfSums, stream, update, memory);
  SumTiles(stream, memory.counts, 1, num_tiles, &memory.verdict->num_changed);
  TFX_LAUNCH(ListChanged, Grid(num_tiles), dim3(kThreads), kOfSums, stream, update, memory);
  return LastError();
}

Error HashChangedRows(CUstream_st* stream, const TableUpdate& update, int64_t num_changed,
                      void* scratch) {
  ForgetErrors();
  Scratch dealt(scratch);
  const Memory memory(update, &dealt);
  constexpr size_t kOfSums = kWarps * sizeof(uint64_t);
  const int64_t num_classes = update.tables.num_classes, num_buckets = update.tables.num_buckets;
  Error error = HashCodes(stream, update.family, update.begin, update.end,
                          {update.weights, memory.changed, num_changed}, memory.hashes,
                          {memory.codes, 1, num_classes}, &memory.verdict->faults);
  if (!error.ok()) return error;
  for (int64_t t = 0; t < update.end - update.begin; ++t) {
    TFX_LAUNCH_THREADS(CheckTable, std::max(num_classes, num_buckets), stream, update, memory, t);
    TFX_LAUNCH_THREADS(ReadTable, num_classes, stream, update, memory, t);
    TFX_LAUNCH(FindBuckets, Grid(BlocksOf(num_classes, kThreads)), dim3(kThreads), kOfSums, stream,
               update, memory, t);
  }
  return LastError();
}

Error WriteTables(CUstream_st* stream, const TableUpdate& update, void* scratch) {
  ForgetErrors();
  Scratch dealt(scratch);
  const Memory memory(update, &dealt);
  const int64_t num_classes = update.tables.num_classes, num_buckets = update.tables.num_buckets;
  const int bits = BitsOfClasses(num_buckets + 1);
  for (int64_t t = 0; t < update.end - update.begin; ++t) {
    TFX_LAUNCH_THREADS(TakeCodes, num_classes, stream, memory.codes + t * num_classes, num_classes,
                       num_buckets, UnsortedEntries(memory.sort, bits));
    SortEntries(stream, num_classes, bits, memory.sort);
    TFX_LAUNCH_THREADS(WriteTable, std::max(num_classes, num_buckets + 1), stream, update,
                       memory.sort.entries, t);
  }
  return LastError().AfterChanges();
}

}  // namespace tfx::core::gpu
