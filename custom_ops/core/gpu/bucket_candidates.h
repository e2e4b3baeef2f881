// SPDX-License-Identifier: Apache-2.0
//
// Candidate classes from the buckets that queries fall into, on a GPU: those of the processor, to
// the bit. Sums are of whole numbers, so that their order does not count.

#ifndef TFX_LARGEOUT_CORE_GPU_BUCKET_CANDIDATES_H_
#define TFX_LARGEOUT_CORE_GPU_BUCKET_CANDIDATES_H_

#include <cstdint>

#include "core/bucket_candidates.h"
#include "core/gpu/error.h"
#include "core/gpu/hash_faults.h"
#include "core/hash_tables.h"

struct CUstream_st;

namespace tfx::core::gpu {

// core::BucketQueries on a device, and what chance decides; any numbers.
struct BucketQueries {
  core::BucketQueries queries;  // its rotations are not looked at
  const int64_t* rotations;     // [L]
  const int64_t* first_class;   // one number
};

// What queries refuse: the first place of each kind, or kNoFault.
struct QueryFaults {
  unsigned long long code;         // of `codes`: is no bucket of a range
  unsigned long long order;        // of `order`: is none of the tables, or a second time
  unsigned long long rotation;     // of `rotations`: is not in [0, 2^32)
  unsigned long long first_class;  // 0: is no class
  unsigned long long visit;        // 0: what was read of a bucket is corrupt
};

// Memory that a call takes: 20 C bytes for shared candidates; for own ones 8 to 16 bytes a
// candidate, at most 256 MiB or what an example needs.
int64_t BucketCandidatesScratchBytes(const HashTables& tables, const core::BucketQueries& queries,
                                     bool own);

// Begin what core::OwnBucketCandidates and core::BucketVotes::Candidates do. What is at fault is
// passed over. `marks` may be null. Return what is wrong. *FaultsIn(scratch)
// tells, on the device, what is refused.
Error OwnBucketCandidates(CUstream_st* stream, const HashTables& tables,
                          const BucketQueries& queries, void* scratch, int64_t* ids,
                          int64_t* turns);
Error VotedBucketCandidates(CUstream_st* stream, const HashTables& tables,
                            const BucketQueries& queries, void* scratch, int64_t* ids,
                            int64_t* votes);

inline QueryFaults* FaultsIn(void* scratch) { return static_cast<QueryFaults*>(scratch); }

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_BUCKET_CANDIDATES_H_
