// SPDX-License-Identifier: Apache-2.0
//
// Candidate classes from the buckets that queries fall into.

#ifndef TFX_LARGEOUT_CORE_BUCKET_CANDIDATES_H_
#define TFX_LARGEOUT_CORE_BUCKET_CANDIDATES_H_

#include <cstdint>
#include <vector>

#include "core/execution.h"
#include "core/hash_tables.h"

namespace tfx::core {

// N examples with Q queries each, which read a bucket of each range (see HashFamily). At most
// `most_of_bucket` classes of a bucket are read: from position floor(rotations[t] * size / 2^32)
// on, cyclically.
struct BucketQueries {
  const int32_t* codes;       // [N, Q, L], in range 0; kNoCode: none
  int64_t size;               // N
  int64_t num_queries;        // Q
  const int32_t* order;       // [L], a permutation: the order of the tables
  const uint32_t* rotations;  // [L]
  int64_t most_of_bucket;
  int64_t budget;      // S
  int64_t num_ranges;  // a table has as many buckets in each
};

// The first S distinct classes in an example's buckets, visited range by range, table by table in
// `order` and query by query; then -1. Turn r L + i is the visit of the i-th table in order, in
// range r: `turns` [N, S], or null, gets the turn of each class, ranges * L for no class.
//
// Cost: O(ranges Q L + visited classes) per example.
//
// Returns false if a bucket that was read is corrupt.
//
// REQUIRES: codes are below the number of buckets of a range.
bool OwnBucketCandidates(const HashTables& tables, const BucketQueries& queries,
                         const Execution& execution, int64_t* ids, int64_t* turns);

// Counts how often each class occurs in the buckets of all examples.
//
// Memory: 4.5 C bytes per voter, kept between calls, and 4 C in a call. Workers beyond NumVoters
// don't vote, so that all counts take at most max(kMostBytes, 2 * 4.5 C) for any number of workers.
class BucketVotes {
 public:
  // The S classes with the most votes, in rising order, then -1. Ties go to the first id from
  // `first_class` on, cyclically. `votes` [S], or null, gets the number of votes of each; then 0.
  //
  // Cost: O(N ranges Q L + visited classes).
  //
  // Result and requirements: as OwnBucketCandidates.
  bool Candidates(const HashTables& tables, const BucketQueries& queries, int64_t first_class,
                  const Execution& execution, int64_t* ids, int64_t* votes);

  static constexpr int64_t kMostBytes = int64_t{1} << 28;
  static int NumVoters(int64_t num_classes, int num_workers);

  // Bytes kept between calls.
  int64_t held() const;

 private:
  struct alignas(64) Voter {        // no two on a cache line
    std::vector<uint32_t> votes;    // [C] or more; all 0 between calls
    std::vector<uint32_t> classes;  // the first ones with votes, if there is room
    int64_t num_classes = 0;        // with votes, at most one more than the room

    void Vote(uint32_t c, uint32_t n) {
      if (votes[c] == 0 && num_classes <= static_cast<int64_t>(classes.size())) Note(c);
      votes[c] += n;
    }
    void Note(uint32_t c) {
      if (num_classes < static_cast<int64_t>(classes.size())) classes[num_classes] = c;
      ++num_classes;
    }

    // Calls visit(class) for the classes with votes, of `all`.
    template <typename Visit>
    void ForClasses(int64_t all, const Visit& visit) const {
      if (num_classes <= static_cast<int64_t>(classes.size())) {
        for (int64_t i = 0; i < num_classes; ++i) visit(classes[i]);
      } else {
        for (int64_t c = 0; c < all; ++c) {
          if (votes[c] > 0) visit(static_cast<uint32_t>(c));
        }
      }
    }
  };

  void MakeRoom(int64_t num_classes, int num_voters);

  // Puts the classes with the most votes into `ids`, and all votes into the first voter. Returns
  // the number of classes. `room` has room for C.
  int64_t Elect(int num_voters, const BucketQueries& queries, int64_t first_class,
                int64_t num_classes, uint32_t* room, int64_t* ids);

  std::vector<Voter> voters_;  // by worker
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_BUCKET_CANDIDATES_H_
