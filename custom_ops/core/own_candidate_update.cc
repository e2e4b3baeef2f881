// SPDX-License-Identifier: Apache-2.0
//
// With candidates of their own, examples and classes meet in a sparse matrix G. Its entries are
// sorted by class; one pass over the rows of W, class by class, then reads a row, adds its part to
// dL/dH, forms its own gradient, and updates it.
//
// Entries are dealt out to buckets, ranges of classes, and sorted within. Buckets make up groups of
// about as many entries. A group is worked on by one worker, with a dL/dH of its own; these are
// added up in the end. Buckets and groups depend on the batch alone, so that the result does not
// depend on the number of workers.

#include <algorithm>

#include "core/candidate_update.h"
#include "core/radix_sort.h"

namespace tfx::core {
namespace {

constexpr int64_t kEntriesOfChunk = 8192;
constexpr int64_t kMostChunks = 128;
constexpr int64_t kEntriesOfBucket = 512;
constexpr int kMostBucketBits = 12;
constexpr int64_t kEntriesOfGroup = 512;
constexpr int64_t kMostGroups = 64;
constexpr int64_t kMostPartials = 1 << 24;  // floats in all copies of dL/dH
constexpr int64_t kFewGroups = 4;           // may be more than that
constexpr int64_t kExamplesOfTask = 16;
constexpr int64_t kRowsAhead = 8;

int64_t Tasks(int64_t n, int64_t size) { return (n + size - 1) / size; }

class OwnCandidateStep {
 public:
  OwnCandidateStep(const LayerWeights& weights, const LayerRows& rows, const CandidateBatch& batch,
                   const CandidateGradients& gradients, const RowUpdater* updater,
                   const Execution& execution, float* hidden_gradient)
      : weights_(weights),
        rows_(rows),
        batch_(batch),
        gradients_(gradients),
        updater_(updater),
        execution_(execution),
        hidden_gradient_(hidden_gradient),
        width_(weights.width),
        padded_width_(Tasks(weights.width, execution.rows.lanes) * execution.rows.lanes) {}

  void Run() {
    Workspace::Scope scope(execution_.workspace);
    Plan();
    TakeMemory();
    const auto pad = [this](int64_t task, int) { PadHidden(task); };
    const auto count = [this](int64_t chunk, int) { CountEntries(chunk); };
    const auto place = [this](int64_t, int) { PlaceBuckets(); };
    const auto deal = [this](int64_t chunk, int) { DealEntries(chunk); };
    const auto groups = [this](int64_t group, int worker) { UpdateGroup(group, worker); };
    const auto sum = [this](int64_t task, int) { SumGroups(task); };
    const int64_t examples = Tasks(batch_.size, kExamplesOfTask);
    execution_.Run({{"count classes", {{num_chunks_, count}, {examples, pad}}},
                    {"place classes", {{1, place}}},
                    {"deal out classes", {{num_chunks_, deal}}},
                    {"update rows", {{num_groups_, groups}}},
                    {"sum hidden gradient", {{examples, sum}}}});
  }

 private:
  void Plan() {
    const int64_t of_example = batch_.num_labels + batch_.num_candidates;
    const int64_t total = batch_.size * of_example;
    examples_of_chunk_ = std::max(Tasks(kEntriesOfChunk, std::max<int64_t>(of_example, 1)),
                                  Tasks(batch_.size, kMostChunks));
    num_chunks_ = Tasks(batch_.size, examples_of_chunk_);
    const int class_bits = BitsOfClasses(weights_.num_classes);
    int bucket_bits = 0;
    while (bucket_bits < std::min(kMostBucketBits, class_bits) &&
           kEntriesOfBucket << bucket_bits < total) {
      ++bucket_bits;
    }
    num_buckets_ = int64_t{1} << bucket_bits;
    low_bits_ = class_bits - bucket_bits;
    const int64_t copy = std::max<int64_t>(batch_.size * padded_width_, 1);
    num_groups_ = std::min({Tasks(total, kEntriesOfGroup), kMostGroups, num_buckets_,
                            std::max(kMostPartials / copy, kFewGroups)});
  }

  template <typename T>
  T* Take(int64_t n) {
    return execution_.workspace.Take<T>(n);
  }

  void TakeMemory() {
    const int64_t total = batch_.size * (batch_.num_labels + batch_.num_candidates);
    entries_ = Take<ClassTerm>(total);
    spare_ = Take<ClassTerm>(total);
    places_ = Take<int64_t>(num_chunks_ * num_buckets_);
    buckets_ = Take<int64_t>(num_buckets_ + 1);
    partials_ = Take<float>(num_groups_ * batch_.size * padded_width_);
    row_scratch_ = Take<float>(execution_.num_workers * 2 * padded_width_);
    hidden_ = batch_.hidden;
    if (padded_width_ != width_) {
      padded_hidden_ = Take<float>(batch_.size * padded_width_);
      hidden_ = padded_hidden_;
    }
  }

  void PadHidden(int64_t task) {
    if (padded_hidden_ == nullptr) return;
    const int64_t end = std::min((task + 1) * kExamplesOfTask, batch_.size);
    for (int64_t i = task * kExamplesOfTask; i < end; ++i) {
      CopyPadded(batch_.hidden + i * width_, padded_hidden_ + i * padded_width_);
    }
  }

  void CopyPadded(const float* from, float* to) const {
    std::copy_n(from, width_, to);
    std::fill_n(to + width_, padded_width_ - width_, 0.0f);
  }

  // Calls visit(class, example, gradient) for the entries of a chunk: examples in order, their
  // labels before their candidates.
  template <typename Visit>
  void ForEntries(int64_t chunk, const Visit& visit) const {
    const int64_t end = std::min((chunk + 1) * examples_of_chunk_, batch_.size);
    for (int64_t i = chunk * examples_of_chunk_; i < end; ++i) {
      const auto visit_all = [&](const int64_t* ids, const float* gradients, int64_t n) {
        for (int64_t at = i * n; at < (i + 1) * n; ++at) {
          if (ids[at] >= 0) visit(ids[at], i, gradients[at]);
        }
      };
      visit_all(batch_.labels, gradients_.labels, batch_.num_labels);
      visit_all(batch_.candidates, gradients_.candidates, batch_.num_candidates);
    }
  }

  void CountEntries(int64_t chunk) {
    int64_t* counts = places_ + chunk * num_buckets_;
    std::fill_n(counts, num_buckets_, 0);
    ForEntries(chunk, [&](int64_t c, int64_t, float) { ++counts[c >> low_bits_]; });
  }

  // Sets `buckets_` to where each bucket begins, and `places_` to where each chunk's part of it
  // does.
  void PlaceBuckets() {
    int64_t place = 0;
    for (int64_t bucket = 0; bucket < num_buckets_; ++bucket) {
      buckets_[bucket] = place;
      for (int64_t chunk = 0; chunk < num_chunks_; ++chunk) {
        const int64_t count = places_[chunk * num_buckets_ + bucket];
        places_[chunk * num_buckets_ + bucket] = place;
        place += count;
      }
    }
    buckets_[num_buckets_] = place;
  }

  // The first bucket of a group: groups share the entries evenly.
  int64_t FirstBucket(int64_t group) const {
    if (group == num_groups_) return num_buckets_;
    const int64_t entry = buckets_[num_buckets_] * group / num_groups_;
    return std::lower_bound(buckets_, buckets_ + num_buckets_, entry) - buckets_;
  }

  void DealEntries(int64_t chunk) {
    int64_t* places = places_ + chunk * num_buckets_;
    ForEntries(chunk, [&](int64_t c, int64_t i, float g) {
      entries_[places[c >> low_bits_]++] = {static_cast<uint32_t>(c), static_cast<uint32_t>(i), g};
    });
  }

  void UpdateGroup(int64_t group, int worker) {
    float* partial = partials_ + group * batch_.size * padded_width_;
    std::fill_n(partial, batch_.size * padded_width_, 0.0f);
    const int64_t end = FirstBucket(group + 1);
    for (int64_t bucket = FirstBucket(group); bucket < end; ++bucket) {
      ClassTerm* begin = entries_ + buckets_[bucket];
      const int64_t n = buckets_[bucket + 1] - buckets_[bucket];
      SortByClass(begin, spare_ + buckets_[bucket], n, low_bits_);
      UpdateBucket(begin, begin + n, worker, partial);
    }
  }

  static const ClassTerm* EndOfClass(const ClassTerm* begin, const ClassTerm* end) {
    const ClassTerm* next = begin + 1;
    while (next < end && next->class_id == begin->class_id) ++next;
    return next;
  }

  void UpdateBucket(const ClassTerm* begin, const ClassTerm* end, int worker, float* partial) {
    const ClassTerm* ahead = begin;
    for (int64_t row = 0; row < kRowsAhead && ahead < end; ++row) ahead = PrefetchClass(ahead, end);
    for (const ClassTerm* next; begin < end; begin = next) {
      if (ahead < end) ahead = PrefetchClass(ahead, end);
      next = EndOfClass(begin, end);
      UpdateClass(begin, next - begin, worker, partial);
    }
  }

  // Returns where the next class begins.
  const ClassTerm* PrefetchClass(const ClassTerm* begin, const ClassTerm* end) const {
    PrefetchRow(rows_.kernel, begin->class_id);
    if (rows_.bias.weights != nullptr) PrefetchRow(rows_.bias, begin->class_id);
    return EndOfClass(begin, end);
  }

  void UpdateClass(const ClassTerm* terms, int64_t n, int worker, float* partial) const {
    float* scratch = row_scratch_ + worker * 2 * padded_width_;
    float* gradient = scratch + padded_width_;
    const int64_t c = terms->class_id;
    execution_.rows.add_terms(terms, n, hidden_, PaddedRow(c, scratch), padded_width_, gradient,
                              partial);
    if (updater_ == nullptr) return;
    updater_->Update(rows_.kernel, c, gradient);
    if (rows_.bias.weights == nullptr) return;
    float bias_gradient = 0;
    for (int64_t t = 0; t < n; ++t) bias_gradient += terms[t].gradient;
    updater_->Update(rows_.bias, c, &bias_gradient);
  }

  const float* PaddedRow(int64_t c, float* scratch) const {
    const void* row = weights_.Row(c);
    if (!weights_.is_bfloat16) {
      if (padded_width_ == width_) return static_cast<const float*>(row);
      CopyPadded(static_cast<const float*>(row), scratch);
    } else {
      execution_.rows.widen(static_cast<const uint16_t*>(row), width_, scratch);
      std::fill_n(scratch + width_, padded_width_ - width_, 0.0f);
    }
    return scratch;
  }

  void SumGroups(int64_t task) {
    const int64_t end = std::min((task + 1) * kExamplesOfTask, batch_.size);
    for (int64_t i = task * kExamplesOfTask; i < end; ++i) {
      float* to = hidden_gradient_ + i * width_;
      std::fill_n(to, width_, 0.0f);
      for (int64_t group = 0; group < num_groups_; ++group) {
        execution_.rows.add(partials_ + (group * batch_.size + i) * padded_width_, width_, to);
      }
    }
  }

  const LayerWeights& weights_;
  const LayerRows& rows_;
  const CandidateBatch& batch_;
  const CandidateGradients& gradients_;
  const RowUpdater* updater_;
  const Execution& execution_;
  float* hidden_gradient_;
  const int64_t width_, padded_width_;
  int64_t examples_of_chunk_ = 0, num_chunks_ = 0, num_buckets_ = 0, num_groups_ = 0;
  int low_bits_ = 0;                // of a class id, within its bucket
  ClassTerm* entries_ = nullptr;    // by bucket, then by class
  ClassTerm* spare_ = nullptr;      // as many
  int64_t* places_ = nullptr;       // [chunks, buckets]
  int64_t* buckets_ = nullptr;      // [buckets + 1]
  float* partials_ = nullptr;       // [groups, N, padded D]: dL/dH
  float* row_scratch_ = nullptr;    // two rows a worker
  float* padded_hidden_ = nullptr;  // [N, padded D], or null if there is no padding
  const float* hidden_ = nullptr;
};

}  // namespace

void OwnCandidateUpdate(const LayerWeights& weights, const LayerRows& rows,
                        const CandidateBatch& batch, const CandidateGradients& gradients,
                        const RowUpdater* updater, const Execution& execution,
                        float* hidden_gradient) {
  OwnCandidateStep(weights, rows, batch, gradients, updater, execution, hidden_gradient).Run();
}

}  // namespace tfx::core
