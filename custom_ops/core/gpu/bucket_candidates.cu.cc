// SPDX-License-Identifier: Apache-2.0
//
// A warp goes through the buckets of an example: its lanes look up a bucket each, and then read one
// after the other together.

#include "core/gpu/bucket_candidates.h"

#include <algorithm>

#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/radix_sort.h"
#include "core/gpu/scratch.h"
#include "core/radix_sort.h"

namespace tfx::core::gpu {
namespace {

constexpr int64_t kMostSlots = int64_t{1} << 26;  // of all sets of classes
constexpr uint32_t kFree = 0xffffffff;

// The places that a query reads in a bucket: [first, end) and then [begin, ...), `left` in all.
struct Visit {
  int64_t begin, end, first, left;
  bool is_corrupt;
};

__device__ int64_t NumVisits(const HashTables& tables, const core::BucketQueries& queries) {
  return queries.num_ranges * tables.num_tables * queries.num_queries;
}

__device__ int64_t TableOf(const HashTables& tables, const core::BucketQueries& queries,
                           int64_t visit) {
  return queries.order[visit / queries.num_queries % tables.num_tables];
}

// Visit number `visit` of example i: range by range, table by table and query by query.
__device__ Visit VisitOf(const HashTables& tables, const BucketQueries& with, int64_t i,
                         int64_t visit) {
  const core::BucketQueries& queries = with.queries;
  const int64_t num_tables = tables.num_tables, query = visit % queries.num_queries;
  const int64_t range = visit / queries.num_queries / num_tables;
  const int64_t of_range = tables.num_buckets / queries.num_ranges;
  const int64_t t = TableOf(tables, queries, visit);
  if (t < 0 || t >= num_tables) return {0, 0, 0, 0, false};
  const int32_t code = queries.codes[(i * queries.num_queries + query) * num_tables + t];
  if (code < 0 || code >= of_range) return {0, 0, 0, 0, false};
  const int32_t* starts = tables.starts + t * (tables.num_buckets + 1) + range * of_range + code;
  const int64_t begin = starts[0], end = starts[1], size = end - begin;
  if (begin < 0 || size < 0 || end > tables.num_classes) return {0, 0, 0, 0, true};
  const int64_t rotation = with.rotations[t] & 0xffffffff;
  return {begin, end, begin + (rotation * size >> 32),
          size < queries.most_of_bucket ? size : queries.most_of_bucket, false};
}

__device__ Visit OfLane(const Visit& visit, int lane) {
  return {__shfl_sync(~0u, visit.begin, lane), __shfl_sync(~0u, visit.end, lane),
          __shfl_sync(~0u, visit.first, lane), __shfl_sync(~0u, visit.left, lane),
          __shfl_sync(~0u, static_cast<int>(visit.is_corrupt), lane) != 0};
}

// Place number `at` of a visit; the class there, or -1 if it is none.
__device__ int32_t ClassAt(const HashTables& tables, int64_t table, const Visit& visit,
                           int64_t at) {
  int64_t place = visit.first + at;
  if (place >= visit.end) place -= visit.end - visit.begin;
  const int32_t c = tables.entries[table * tables.num_classes + place];
  return c < tables.num_classes ? c : -1;
}

// Puts a class into a set, which is at most half full. Returns whether it is new.
__device__ bool Insert(uint32_t* slots, int64_t room, uint32_t c) {
  const auto mask = static_cast<uint64_t>(room - 1);
  for (uint64_t at = (c * 0x9e3779b97f4a7c15ull >> 32) & mask;; at = (at + 1) & mask) {
    const uint32_t there = atomicCAS(slots + at, kFree, c);
    if (there == kFree) return true;
    if (there == c) return false;
  }
}

// A thread per code; the first L also handle tables.
__global__ void __launch_bounds__(kThreads)
    CheckQueries(HashTables tables, BucketQueries with, QueryFaults* faults) {
  const core::BucketQueries& queries = with.queries;
  const int64_t at = OwnIndex();
  const auto place = static_cast<unsigned long long>(at);
  if (at < queries.size * queries.num_queries * tables.num_tables &&
      queries.codes[at] >= tables.num_buckets / queries.num_ranges) {
    atomicMin(&faults->code, place);
  }
  if (at == 0 && (*with.first_class < 0 || *with.first_class >= tables.num_classes)) {
    faults->first_class = 0;
  }
  if (at >= tables.num_tables) return;
  const int32_t table = queries.order[at];
  bool is_new = table >= 0 && table < tables.num_tables;
  for (int64_t t = 0; t < at; ++t) is_new = is_new && queries.order[t] != table;
  if (!is_new) atomicMin(&faults->order, place);
  if (with.rotations[at] < 0 || with.rotations[at] > 0xffffffff) {
    atomicMin(&faults->rotation, place);
  }
}

__global__ void SetFaults(QueryFaults* faults) {
  *faults = {kNoFault, kNoFault, kNoFault, kNoFault, kNoFault};
}

// Warps process examples in turn, each with a separate set.
__global__ void __launch_bounds__(kThreads)
    TakeFirst(HashTables tables, BucketQueries with, int64_t num_warps, int64_t room,
              uint32_t* sets, int64_t* ids, int64_t* turns, QueryFaults* faults) {
  const core::BucketQueries& queries = with.queries;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  if (warp >= num_warps) return;
  uint32_t* const slots = sets + warp * room;
  const int64_t budget = queries.budget, num_visits = NumVisits(tables, queries);
  for (int64_t i = warp; i < queries.size; i += num_warps) {
    for (int64_t slot = lane; slot < room; slot += kWarpSize) slots[slot] = kFree;
    __syncwarp();
    int64_t found = 0;
    bool is_corrupt = false;
    for (int64_t first = 0; first < num_visits && found < budget; first += kWarpSize) {
      const Visit own = first + lane < num_visits ? VisitOf(tables, with, i, first + lane)
                                                  : Visit{0, 0, 0, 0, false};
      for (int64_t v = first; v < first + kWarpSize && found < budget; ++v) {
        const Visit visit = OfLane(own, static_cast<int>(v - first));
        is_corrupt = is_corrupt || visit.is_corrupt;
        if (visit.left == 0) continue;
        const int64_t table = TableOf(tables, queries, v);
        for (int64_t at = 0; at < visit.left && found < budget; at += kWarpSize) {
          const bool is_in = at + lane < visit.left;
          const int32_t c = is_in ? ClassAt(tables, table, visit, at + lane) : -1;
          const bool is_new = c >= 0 && Insert(slots, room, static_cast<uint32_t>(c));
          const uint32_t up_to = SumUpTo(is_new ? 1 : 0);
          const int64_t place = found + up_to - 1;
          // Corruption after the last class taken does not matter.
          if (is_in && c < 0 && found + up_to < budget) faults->visit = 0;
          if (is_new && place < budget) {
            ids[i * budget + place] = c;
            if (turns != nullptr) turns[i * budget + place] = v / queries.num_queries;
          }
          found += __shfl_sync(~0u, up_to, kWarpSize - 1);
        }
      }
    }
    if (is_corrupt && lane == 0) faults->visit = 0;
    for (int64_t place = found + lane; place < budget; place += kWarpSize) {
      ids[i * budget + place] = -1;
      if (turns != nullptr) {
        turns[i * budget + place] = queries.num_ranges * tables.num_tables;
      }
    }
    __syncwarp();
  }
}

// A warp for 32 visits of an example.
__global__ void __launch_bounds__(kThreads)
    Vote(HashTables tables, BucketQueries with, uint32_t* votes, QueryFaults* faults) {
  const int64_t num_visits = NumVisits(tables, with.queries);
  const int64_t of_example = (num_visits + kWarpSize - 1) / kWarpSize;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  if (warp >= with.queries.size * of_example) return;
  const int64_t first = warp % of_example * kWarpSize;
  const Visit own = first + lane < num_visits
                        ? VisitOf(tables, with, warp / of_example, first + lane)
                        : Visit{0, 0, 0, 0, false};
  if (own.is_corrupt) faults->visit = 0;
  for (int of_lane = 0; of_lane < kWarpSize; ++of_lane) {
    const Visit visit = OfLane(own, of_lane);
    if (visit.left == 0) continue;
    const int64_t table = TableOf(tables, with.queries, first + of_lane);
    for (int64_t at = lane; at < visit.left; at += kWarpSize) {
      const int32_t c = ClassAt(tables, table, visit, at);
      if (c >= 0) {
        atomicAdd(votes + c, 1u);
      } else {
        faults->visit = 0;
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) ClearVotes(uint32_t* votes, int64_t num_classes) {
  const int64_t c = OwnIndex();
  if (c < num_classes) votes[c] = 0;
}

// A thread for each class, in the order in which they go first among equals.
__global__ void __launch_bounds__(kThreads)
    RankClasses(const uint32_t* votes, const int64_t* first_class, int64_t num_classes,
                uint64_t* entries) {
  const int64_t place = OwnIndex();
  if (place >= num_classes) return;
  const int64_t first = *first_class;
  const bool is_class = first >= 0 && first < num_classes;
  int64_t c = place + (is_class ? first : 0);
  if (c >= num_classes) c -= num_classes;
  entries[place] = EntryOf(~votes[c], static_cast<uint32_t>(c));
}

// A thread for each of the elected, which are the first entries: makes their class the key.
__global__ void __launch_bounds__(kThreads)
    TakeElected(const uint64_t* ranked, int64_t budget, int64_t num_classes, uint64_t* entries) {
  const int64_t i = OwnIndex();
  if (i >= budget) return;
  const uint32_t votes = ~KeyOf(ranked[i]);
  const auto c = static_cast<uint32_t>(ranked[i]);
  entries[i] = EntryOf(votes > 0 ? c : static_cast<uint32_t>(num_classes), votes);
}

__global__ void __launch_bounds__(kThreads)
    WriteElected(const uint64_t* entries, int64_t budget, int64_t num_classes, int64_t* ids,
                 int64_t* votes) {
  const int64_t i = OwnIndex();
  if (i >= budget) return;
  const int64_t c = KeyOf(entries[i]);
  ids[i] = c < num_classes ? c : -1;
  if (votes != nullptr) votes[i] = static_cast<uint32_t>(entries[i]);
}

// Device memory; sets are of own candidates, the rest of shared ones.
struct Memory {
  Memory(const HashTables& tables, const core::BucketQueries& queries, bool own, Scratch* scratch) {
    faults = scratch->Take<QueryFaults>(1);
    if (own) {
      // A warp may add one class each lane more than it takes.
      room = kWarpSize;
      while (room < 2 * (queries.budget + kWarpSize)) room *= 2;
      num_sets = std::clamp<int64_t>(kMostSlots / room, 1, std::max<int64_t>(queries.size, 1));
      sets = scratch->Take<uint32_t>(num_sets * room);
      return;
    }
    votes = scratch->Take<uint32_t>(tables.num_classes);
    ranked = TakeRadixSort(tables.num_classes, scratch);
    elected = TakeRadixSort(queries.budget, scratch);
  }

  QueryFaults* faults;
  int64_t room = 0, num_sets = 0;
  uint32_t* sets = nullptr;
  uint32_t* votes = nullptr;
  RadixSort ranked = {}, elected = {};
};

void BeginChecks(CUstream_st* stream, const HashTables& tables, const BucketQueries& with,
                 QueryFaults* faults) {
  ForgetErrors();
  const core::BucketQueries& queries = with.queries;
  TFX_LAUNCH(SetFaults, dim3(1), dim3(1), 0, stream, faults);
  const int64_t n = std::max<int64_t>(queries.size * queries.num_queries, 1) * tables.num_tables;
  TFX_LAUNCH_THREADS(CheckQueries, n, stream, tables, with, faults);
}

}  // namespace

int64_t BucketCandidatesScratchBytes(const HashTables& tables, const core::BucketQueries& queries,
                                     bool own) {
  Scratch scratch(nullptr);
  Memory(tables, queries, own, &scratch);
  return scratch.bytes();
}

Error OwnBucketCandidates(CUstream_st* stream, const HashTables& tables,
                          const BucketQueries& queries, void* scratch, int64_t* ids,
                          int64_t* turns) {
  Scratch dealt(scratch);
  const Memory memory(tables, queries.queries, true, &dealt);
  BeginChecks(stream, tables, queries, memory.faults);
  if (queries.queries.size > 0) {
    TFX_LAUNCH_BLOCKS(TakeFirst, BlocksOf(memory.num_sets, kWarps), stream, tables, queries,
                      memory.num_sets, memory.room, memory.sets, ids, turns, memory.faults);
  }
  return LastError();
}

Error VotedBucketCandidates(CUstream_st* stream, const HashTables& tables,
                            const BucketQueries& with, void* scratch, int64_t* ids,
                            int64_t* votes) {
  constexpr int kBitsOfVotes = 32;
  const core::BucketQueries& queries = with.queries;
  const int64_t num_classes = tables.num_classes, budget = queries.budget;
  Scratch dealt(scratch);
  const Memory memory(tables, queries, false, &dealt);
  BeginChecks(stream, tables, with, memory.faults);
  TFX_LAUNCH_THREADS(ClearVotes, num_classes, stream, memory.votes, num_classes);
  const int64_t num_visits = queries.num_ranges * tables.num_tables * queries.num_queries;
  TFX_LAUNCH_BLOCKS(Vote, BlocksOf(queries.size * BlocksOf(num_visits, kWarpSize), kWarps), stream,
                    tables, with, memory.votes, memory.faults);
  TFX_LAUNCH_THREADS(RankClasses, num_classes, stream, memory.votes, with.first_class, num_classes,
                     UnsortedEntries(memory.ranked, kBitsOfVotes));
  SortEntries(stream, num_classes, kBitsOfVotes, memory.ranked);
  const int bits = BitsOfClasses(num_classes + 1);
  TFX_LAUNCH_THREADS(TakeElected, budget, stream, memory.ranked.entries, budget, num_classes,
                     UnsortedEntries(memory.elected, bits));
  SortEntries(stream, budget, bits, memory.elected);
  TFX_LAUNCH_THREADS(WriteElected, budget, stream, memory.elected.entries, budget, num_classes, ids,
                     votes);
  return LastError();
}

}  // namespace tfx::core::gpu
