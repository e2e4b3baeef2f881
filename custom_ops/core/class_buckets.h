// SPDX-License-Identifier: Apache-2.0
//
// The classes of a batch with candidates per example, sorted into buckets: ranges of classes so
// small that their rows of W stay in the caches, or at least close together, while the entries of a
// bucket are processed.

#ifndef TFX_LARGEOUT_CORE_CLASS_BUCKETS_H_
#define TFX_LARGEOUT_CORE_CLASS_BUCKETS_H_

#include <algorithm>
#include <cstdint>

#include "core/candidate_batch.h"
#include "core/execution.h"

namespace tfx::core {

// An entry is a label or a candidate that is not padding. In a bucket, entries are ordered by
// example, labels before candidates. Entries are sorted in chunks, which may run in parallel: Count
// each chunk, then Place, then Deal each. The content of buckets depends only on the batch, not on
// the number of workers.
//
// Cost: O(N (K + S)). Memory: 4 bytes per chunk and bucket, at most 1 MiB.
class ClassBuckets {
 public:
  // REQUIRES: batch.own; the batch and the memory of `execution` outlive this object.
  ClassBuckets(const CandidateBatch& batch, int64_t num_classes, const Execution& execution);

  int64_t num_chunks() const { return num_chunks_; }
  int64_t size() const { return num_buckets_; }
  // The number of lowest bits of class ids that differ within a bucket.
  int low_bits() const { return low_bits_; }
  // The first entry of a bucket; for `size()` the number of entries.
  int64_t Begin(int64_t bucket) const { return begins_[bucket]; }
  // Reads the rows of W of a bucket that are about to be used, if they are most of its range
  // and fit into the caches.
  void ReadRows(int64_t bucket, const LayerWeights& weights) const;

  // The first bucket that begins at the entry or after it.
  int64_t From(int64_t entry) const {
    return std::lower_bound(begins_, begins_ + num_buckets_, entry) - begins_;
  }
  // The bucket of an entry. REQUIRES: 0 <= entry < Begin(size()).
  int64_t Of(int64_t entry) const {
    return std::upper_bound(begins_, begins_ + num_buckets_, entry) - begins_ - 1;
  }

  void Count(int64_t chunk) {
    uint32_t* counts = places_ + chunk * num_buckets_;
    std::fill_n(counts, num_buckets_, 0);
    ForChunk(chunk, [&](int64_t i) {
      const auto count = [&](const int64_t* ids, int64_t n) {
        for (int64_t at = i * n; at < (i + 1) * n; ++at) {
          if (ids[at] >= 0) ++counts[ids[at] >> low_bits_];
        }
      };
      count(batch_.labels, batch_.num_labels);
      count(batch_.candidates, batch_.num_candidates);
    });
  }

  void Place();

  // Calls visit(place, class, example, value) for the entries of a chunk, in order. The value is at
  // the position of the class in [N, K] or [N, S].
  template <typename Value, typename Visit>
  void Deal(int64_t chunk, const Value* of_labels, const Value* of_candidates, const Visit& visit) {
    uint32_t* places = places_ + chunk * num_buckets_;
    ForChunk(chunk, [&](int64_t i) {
      const auto deal = [&](const int64_t* ids, const Value* values, int64_t n) {
        for (int64_t at = i * n; at < (i + 1) * n; ++at) {
          if (ids[at] >= 0) visit(places[ids[at] >> low_bits_]++, ids[at], i, values[at]);
        }
      };
      deal(batch_.labels, of_labels, batch_.num_labels);
      deal(batch_.candidates, of_candidates, batch_.num_candidates);
    });
  }

  // Reverses Deal, from the last entry to the first: sets the value at the position of a class to
  // the value at its place among the entries, and to 0 at padding.
  template <typename Value>
  void TakeBack(int64_t chunk, const Value* entries, Value* of_labels, Value* of_candidates) {
    uint32_t* places = places_ + chunk * num_buckets_;
    for (int64_t i = EndOf(chunk); i-- > chunk * examples_of_chunk_;) {
      const auto take = [&](const int64_t* ids, Value* values, int64_t n) {
        for (int64_t at = (i + 1) * n; at-- > i * n;) {
          values[at] = ids[at] < 0 ? Value{} : entries[--places[ids[at] >> low_bits_]];
        }
      };
      take(batch_.candidates, of_candidates, batch_.num_candidates);
      take(batch_.labels, of_labels, batch_.num_labels);
    }
  }

  // Calls work(i) for the examples of a chunk.
  template <typename Work>
  void ForChunk(int64_t chunk, const Work& work) const {
    for (int64_t i = chunk * examples_of_chunk_; i < EndOf(chunk); ++i) work(i);
  }

 private:
  int64_t EndOf(int64_t chunk) const {
    return std::min((chunk + 1) * examples_of_chunk_, batch_.size);
  }

  const CandidateBatch& batch_;
  int64_t examples_of_chunk_, num_chunks_, num_buckets_;
  int low_bits_;
  uint32_t* places_;  // [chunks, buckets]: number of entries; then the next place
  uint32_t* begins_;  // [buckets + 1]
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_CLASS_BUCKETS_H_
