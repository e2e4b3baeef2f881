// SPDX-License-Identifier: Apache-2.0
//
// With candidates of their own, examples and classes meet in a sparse matrix G. Its entries are
// dealt out to buckets, ranges of classes. Within a bucket they stand by example at first, and so
// add rows of W, which are in the caches by then, to dL/dH; then they are sorted by class, to form
// the gradient of each row, and to update it.
//
// Buckets make up groups of about as many entries. A group is worked on by one worker, with a dL/dH
// of its own; these are added up in the end. Buckets and groups depend on the batch alone, so that
// the result does not depend on the number of workers.

#include <algorithm>

#include "core/candidate_update.h"
#include "core/class_buckets.h"
#include "core/radix_sort.h"

namespace tfx::core {
namespace {

constexpr int64_t kEntriesOfGroup = 512;
constexpr int64_t kEntriesOfExample = 4;  // in a group, or its copy of dL/dH costs more than they
constexpr int64_t kMostGroups = 64;
constexpr int64_t kMostPartials = 1 << 24;  // floats in all copies of dL/dH
constexpr int64_t kFewGroups = 4;           // may be more than that
constexpr int64_t kExamplesOfTask = 16;
constexpr int64_t kRowsAhead = 8;
constexpr int64_t kFloatsOfLine = 16;  // workers share no line

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
        row_stride_(Tasks(weights.width, kFloatsOfLine) * kFloatsOfLine),
        buckets_(batch, weights.num_classes, execution) {}

  void Run() {
    Plan();
    TakeMemory();
    const auto count = [this](int64_t chunk, int) { buckets_.Count(chunk); };
    const auto place = [this](int64_t, int) { buckets_.Place(); };
    const auto deal = [this](int64_t chunk, int) { DealEntries(chunk); };
    const auto groups = [this](int64_t group, int worker) { UpdateGroup(group, worker); };
    const auto sum = [this](int64_t task, int) { SumGroups(task); };
    const int64_t examples = Tasks(batch_.size, kExamplesOfTask);
    execution_.Run({{"count classes", {{buckets_.num_chunks(), count}}},
                    {"place classes", {{1, place}}},
                    {"deal out classes", {{buckets_.num_chunks(), deal}}},
                    {"update rows", {{num_groups_, groups}}},
                    {"sum hidden gradient", {{examples, sum}}}});
  }

 private:
  void Plan() {
    const int64_t total = batch_.size * (batch_.num_labels + batch_.num_candidates);
    const int64_t copy = std::max<int64_t>(batch_.size * width_, 1);
    const int64_t per_copy = kEntriesOfExample * std::max<int64_t>(batch_.size, 1);
    num_groups_ =
        std::min({Tasks(total, kEntriesOfGroup), kMostGroups, buckets_.size(),
                  std::max(std::min(kMostPartials / copy, total / per_copy), kFewGroups)});
  }

  template <typename T>
  T* Take(int64_t n) {
    return execution_.workspace.Take<T>(n);
  }

  void TakeMemory() {
    const int64_t total = batch_.size * (batch_.num_labels + batch_.num_candidates);
    entries_ = Take<ClassTerm>(total);
    spare_ = Take<ClassTerm>(total);
    partials_ = Take<float>(num_groups_ * batch_.size * width_);
    row_gradients_ = Take<float>(execution_.num_workers * row_stride_);
  }

  // The first bucket of a group: groups share the entries evenly.
  int64_t FirstBucket(int64_t group) const {
    return buckets_.From(buckets_.Begin(buckets_.size()) * group / num_groups_);
  }

  void DealEntries(int64_t chunk) {
    buckets_.Deal(chunk, gradients_.labels, gradients_.candidates,
                  [this](int64_t at, int64_t c, int64_t i, float g) {
                    entries_[at] = {static_cast<uint32_t>(c), static_cast<uint32_t>(i), g};
                  });
  }

  void UpdateGroup(int64_t group, int worker) {
    float* partial = partials_ + group * batch_.size * width_;
    std::fill_n(partial, batch_.size * width_, 0.0f);
    const int64_t end = FirstBucket(group + 1);
    for (int64_t bucket = FirstBucket(group); bucket < end; ++bucket) {
      ClassTerm* begin = entries_ + buckets_.Begin(bucket);
      const int64_t n = buckets_.Begin(bucket + 1) - buckets_.Begin(bucket);
      buckets_.ReadRows(bucket, weights_);
      execution_.rows.add_rows(begin, n, weights_.kernel, weights_.is_bfloat16, width_, partial);
      if (updater_ == nullptr) continue;
      SortByClass(begin, spare_ + buckets_.Begin(bucket), n, buckets_.low_bits());
      UpdateBucket(begin, begin + n, worker);
    }
  }

  static const ClassTerm* EndOfClass(const ClassTerm* begin, const ClassTerm* end) {
    const ClassTerm* next = begin + 1;
    while (next < end && next->class_id == begin->class_id) ++next;
    return next;
  }

  void UpdateBucket(const ClassTerm* begin, const ClassTerm* end, int worker) {
    const ClassTerm* ahead = begin;
    for (int64_t row = 0; row < kRowsAhead && ahead < end; ++row) ahead = PrefetchClass(ahead, end);
    for (const ClassTerm* next; begin < end; begin = next) {
      if (ahead < end) ahead = PrefetchClass(ahead, end);
      next = EndOfClass(begin, end);
      UpdateClass(begin, next - begin, worker);
    }
  }

  // Returns where the next class begins.
  const ClassTerm* PrefetchClass(const ClassTerm* begin, const ClassTerm* end) const {
    PrefetchRow(rows_.kernel, begin->class_id);
    if (rows_.bias.weights != nullptr) PrefetchRow(rows_.bias, begin->class_id);
    return EndOfClass(begin, end);
  }

  void UpdateClass(const ClassTerm* terms, int64_t n, int worker) const {
    float* gradient = row_gradients_ + worker * row_stride_;
    const int64_t c = terms->class_id;
    execution_.rows.sum_examples(terms, n, batch_.hidden, width_, gradient);
    updater_->Update(rows_.kernel, c, gradient);
    if (rows_.bias.weights == nullptr) return;
    float bias_gradient = 0;
    for (int64_t t = 0; t < n; ++t) bias_gradient += terms[t].gradient;
    updater_->Update(rows_.bias, c, &bias_gradient);
  }

  void SumGroups(int64_t task) {
    const int64_t end = std::min((task + 1) * kExamplesOfTask, batch_.size);
    for (int64_t i = task * kExamplesOfTask; i < end; ++i) {
      float* to = hidden_gradient_ + i * width_;
      std::fill_n(to, width_, 0.0f);
      for (int64_t group = 0; group < num_groups_; ++group) {
        execution_.rows.add(partials_ + (group * batch_.size + i) * width_, width_, to);
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
  const int64_t width_, row_stride_;
  ClassBuckets buckets_;
  int64_t num_groups_ = 0;
  ClassTerm* entries_ = nullptr;    // by bucket, then by class
  ClassTerm* spare_ = nullptr;      // as many
  float* partials_ = nullptr;       // [groups, N, D]: dL/dH
  float* row_gradients_ = nullptr;  // [workers, D], rounded up
};

}  // namespace

void OwnCandidateUpdate(const LayerWeights& weights, const LayerRows& rows,
                        const CandidateBatch& batch, const CandidateGradients& gradients,
                        const RowUpdater* updater, const Execution& execution,
                        float* hidden_gradient) {
  const Workspace::Scope scope(execution.workspace);
  OwnCandidateStep(weights, rows, batch, gradients, updater, execution, hidden_gradient).Run();
}

}  // namespace tfx::core
