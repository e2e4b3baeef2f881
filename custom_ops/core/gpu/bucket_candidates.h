// SPDX-License-Identifier: Apache-2.0
//
// Candidate classes from the buckets of queries, on a GPU: bit for bit as on the processor. Sums
// are of integers, so their order does not matter.

#ifndef TFX_LARGEOUT_CORE_GPU_BUCKET_CANDIDATES_H_
#define TFX_LARGEOUT_CORE_GPU_BUCKET_CANDIDATES_H_

#include <cstdint>

#include "core/bucket_candidates.h"
#include "core/gpu/error.h"
#include "core/gpu/hash_faults.h"
#include "core/hash_tables.h"

struct CUstream_st;

namespace tfx::core::gpu {

// core::BucketQueries on a device, and the random choices; their values are not checked yet.
struct BucketQueries {
  core::BucketQueries queries;  // its rotations are not used
  const int64_t* rotations;     // [L]
  const int64_t* first_class;   // one number
};

// Faults of queries: the first position of each kind, or kNoFault.
struct QueryFaults {
  unsigned long long code;         // of `codes`: not a bucket of a range
  unsigned long long order;        // of `order`: not a table, or repeated
  unsigned long long rotation;     // of `rotations`: not in [0, 2^32)
  unsigned long long first_class;  // 0: not a class
  unsigned long long visit;        // 0: a bucket that was read is corrupt
};

// Memory of a call: 20 C bytes for shared candidates; for candidates per example 8 to 16 bytes per
// candidate, at most 256 MiB or the memory of one example.
int64_t BucketCandidatesScratchBytes(const HashTables& tables, const core::BucketQueries& queries,
                                     bool own);

// Start core::OwnBucketCandidates and core::BucketVotes::Candidates. Faulty entries are skipped.
// `marks` may be null. Return an error of the launches. *FaultsIn(scratch), on the device, has the
// faults.
Error OwnBucketCandidates(CUstream_st* stream, const HashTables& tables,
                          const BucketQueries& queries, void* scratch, int64_t* ids,
                          int64_t* turns);
Error VotedBucketCandidates(CUstream_st* stream, const HashTables& tables,
                            const BucketQueries& queries, void* scratch, int64_t* ids,
                            int64_t* votes);

inline QueryFaults* FaultsIn(void* scratch) { return static_cast<QueryFaults*>(scratch); }

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_BUCKET_CANDIDATES_H_
