// SPDX-License-Identifier: Apache-2.0

#include "core/class_buckets.h"

#include "core/prefetch.h"
#include "core/radix_sort.h"

namespace tfx::core {
namespace {

constexpr int64_t kEntriesOfChunk = 8192;
constexpr int64_t kMostChunks = 128;
constexpr int64_t kEntriesOfBucket = 512;
constexpr int kMostBucketBits = 11;  // more streams than that miss the translation of addresses
constexpr int64_t kMostBytesAhead = 1 << 20;  // more would leave the caches before it is used

}  // namespace

ClassBuckets::ClassBuckets(const CandidateBatch& batch, int64_t num_classes,
                           const Execution& execution)
    : batch_(batch) {
  const int64_t of_example = batch.num_labels + batch.num_candidates;
  examples_of_chunk_ = std::max(BlocksOf(kEntriesOfChunk, std::max<int64_t>(of_example, 1)),
                                BlocksOf(batch.size, kMostChunks));
  num_chunks_ = BlocksOf(batch.size, examples_of_chunk_);
  const int class_bits = BitsOfClasses(num_classes);
  int bucket_bits = 0;
  while (bucket_bits < std::min(kMostBucketBits, class_bits) &&
         kEntriesOfBucket << bucket_bits < batch.size * of_example) {
    ++bucket_bits;
  }
  low_bits_ = class_bits - bucket_bits;
  num_buckets_ = ((num_classes - 1) >> low_bits_) + 1;
  places_ = execution.Take<uint32_t>(num_chunks_ * num_buckets_);
  begins_ = execution.Take<uint32_t>(num_buckets_ + 1);
}

void ClassBuckets::ReadRows(int64_t bucket, const LayerWeights& weights) const {
  const int64_t first = bucket << low_bits_;
  const int64_t num_rows = std::min(int64_t{1} << low_bits_, weights.num_classes - first);
  const int64_t size = num_rows * weights.BytesOfRow();
  if (Begin(bucket + 1) - Begin(bucket) < num_rows || size > kMostBytesAhead) return;
  ReadAhead(weights.Row(first), size);
}

void ClassBuckets::Place() {
  std::fill_n(begins_, num_buckets_ + 1, 0);
  for (int64_t chunk = 0; chunk < num_chunks_; ++chunk) {
    const uint32_t* counts = places_ + chunk * num_buckets_;
    for (int64_t bucket = 0; bucket < num_buckets_; ++bucket) begins_[bucket + 1] += counts[bucket];
  }
  for (int64_t bucket = 0; bucket < num_buckets_; ++bucket) begins_[bucket + 1] += begins_[bucket];
  // From here on begins_[b] is where the next chunk's entries of bucket b go; in the end, this is
  // where bucket b + 1 begins.
  uint32_t* next = begins_;
  for (int64_t chunk = 0; chunk < num_chunks_; ++chunk) {
    uint32_t* places = places_ + chunk * num_buckets_;
    for (int64_t bucket = 0; bucket < num_buckets_; ++bucket) {
      const uint32_t count = places[bucket];
      places[bucket] = next[bucket];
      next[bucket] += count;
    }
  }
  for (int64_t bucket = num_buckets_; bucket > 0; --bucket) begins_[bucket] = begins_[bucket - 1];
  begins_[0] = 0;
}

}  // namespace tfx::core
