// SPDX-License-Identifier: Apache-2.0

#include "core/candidate_update.h"

#include <algorithm>

#include "core/class_buckets.h"
#include "core/prefetch.h"
#include "core/radix_sort.h"

namespace tfx::core {
namespace {

constexpr int64_t kRowsAhead = 8;

// The parts that both methods share: the arguments, and the update of a class.
class CandidateStep {
 public:
  CandidateStep(const LayerWeights& weights, const LayerRows& rows, const CandidateBatch& batch,
                const CandidateGradients& gradients, const RowUpdater* updater,
                const Execution& execution, float* hidden_gradient)
      : weights_(weights),
        rows_(rows),
        batch_(batch),
        gradients_(gradients),
        updater_(updater),
        execution_(execution),
        hidden_gradient_(hidden_gradient),
        width_(weights.width) {}

 protected:
  void Prefetch(int64_t c) const {
    PrefetchRow(rows_.kernel, c);
    if (rows_.bias.weights != nullptr) PrefetchRow(rows_.bias, c);
  }

  void Update(int64_t c, const float* gradient, float bias_gradient) const {
    updater_->Update(rows_.kernel, c, gradient);
    if (rows_.bias.weights != nullptr) updater_->Update(rows_.bias, c, &bias_gradient);
  }

  const LayerWeights& weights_;
  const LayerRows& rows_;
  const CandidateBatch& batch_;
  const CandidateGradients& gradients_;
  const RowUpdater* updater_;
  const Execution& execution_;
  float* hidden_gradient_;
  const int64_t width_;
};

// With candidates that all examples share, both gradients are dense products:
// dL/dH = G W_S and dL/dW_S = G^T H, with the rows W_S of the candidates and G [N, S].
class SharedCandidateStep : CandidateStep {
 public:
  explicit SharedCandidateStep(const CandidateStep& step)
      : CandidateStep(step),
        num_candidates_(batch_.num_candidates),
        num_labels_total_(batch_.size * batch_.num_labels) {}

  void Run() {
    TakeMemory();
    const int64_t if_updating = updater_ == nullptr ? 0 : 1;
    const int64_t if_looking = hidden_gradient_ == nullptr ? 0 : 1;
    const auto sort = [this](int64_t, int) { SortClasses(); };
    const auto pack_rows = [this](int64_t begin, int64_t end, int worker) {
      PackRows(begin, end, worker);
    };
    const auto pack_hidden = [this](int64_t begin, int64_t end, int) {
      execution_.dense.pack(batch_.hidden, width_, batch_.size, width_, begin, end, hidden_panels_);
    };
    const auto hidden = [this](int64_t begin, int64_t end, int worker) {
      HiddenGradient(begin, end - begin, worker);
    };
    const auto kernel = [this](int64_t begin, int64_t end, int worker) {
      KernelGradient(begin, end - begin, worker);
    };
    const auto update = [this](int64_t begin, int64_t end, int worker) {
      UpdateClasses(begin, std::min(end, num_classes_), worker);
    };
    execution_.Run(
        {{"classes and panels",
          {{if_updating, sort},
           InBlocks(if_looking * num_candidates_, kRowsOfTask, pack_rows),
           InBlocks(if_updating * batch_.size, kRowsOfTask, pack_hidden)}},
         {"gradients",
          {InBlocks(if_looking * batch_.size, examples_of_task_, hidden),
           InBlocks(if_updating * num_candidates_, kCandidatesOfTask, kernel)}},
         {"rows",
          {InBlocks(if_updating * (num_labels_total_ + num_candidates_), kRowsOfTask, update)}}});
  }

 private:
  static constexpr int64_t kRowsOfTask = 32;
  static constexpr int64_t kCandidatesOfTask = 48;  // a multiple of most tiles
  static constexpr int64_t kMostExamplesOfTask = 96;

  void TakeMemory() {
    const int64_t panel = execution_.dense.panel_width, tile = execution_.dense.tile_rows;
    const int64_t padded_width = BlocksOf(width_, panel) * panel, workers = execution_.num_workers;
    const int64_t num_places = num_labels_total_ + num_candidates_;
    examples_of_task_ =
        std::clamp(BlocksOf(BlocksOf(batch_.size, 16), tile) * tile, tile, kMostExamplesOfTask);
    has_padding_ = std::any_of(batch_.candidates, batch_.candidates + num_candidates_,
                               [](int64_t c) { return c < 0; });
    row_scratch_ = execution_.Take<float>(workers * width_);
    if (hidden_gradient_ != nullptr) {
      row_panels_ = execution_.Take<float>(num_candidates_ * padded_width);
      if (has_padding_) {
        masked_ = execution_.Take<float>(workers * examples_of_task_ * num_candidates_);
      }
    }
    if (updater_ == nullptr) return;
    hidden_panels_ = execution_.Take<float>(batch_.size * padded_width);
    columns_ = execution_.Take<float>(workers * batch_.size * kCandidatesOfTask);
    kernel_gradient_ = execution_.Take<float>(num_candidates_ * width_);
    bias_gradient_ = execution_.Take<float>(num_candidates_);
    sorted_ = execution_.Take<ClassPlace>(num_places);
    spare_ = execution_.Take<ClassPlace>(num_places);
    first_places_ = execution_.Take<int64_t>(num_places + 1);
  }

  // Sets `sorted_` to all places of each class, labels first, and `first_places_` to where each
  // class begins.
  void SortClasses() {
    int64_t n = 0;
    const auto append = [&](const int64_t* ids, int64_t size, int64_t first_place) {
      for (int64_t i = 0; i < size; ++i) {
        if (ids[i] < 0) continue;
        sorted_[n++] = {static_cast<uint32_t>(ids[i]), static_cast<uint32_t>(first_place + i)};
      }
    };
    append(batch_.labels, num_labels_total_, 0);
    append(batch_.candidates, num_candidates_, num_labels_total_);
    SortByClass(sorted_, spare_, n, BitsOfClasses(weights_.num_classes));
    num_classes_ = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i == 0 || sorted_[i].class_id != sorted_[i - 1].class_id)
        first_places_[num_classes_++] = i;
    }
    first_places_[num_classes_] = n;
  }

  // A row of W as floats, in `scratch` if it is not in floats.
  const float* RowAsFloats(int64_t c, float* scratch) const {
    if (!weights_.is_bfloat16) return static_cast<const float*>(weights_.Row(c));
    execution_.rows.widen(static_cast<const uint16_t*>(weights_.Row(c)), width_, scratch);
    return scratch;
  }

  void PackRows(int64_t begin, int64_t end, int worker) {
    float* scratch = row_scratch_ + worker * width_;
    for (int64_t s = begin; s < end; ++s) {
      const int64_t c = batch_.candidates[s];
      if (c >= 0) PrefetchBytes(weights_.Row(c), weights_.BytesOfRow());
    }
    for (int64_t s = begin; s < end; ++s) {
      const int64_t c = batch_.candidates[s];
      const float* row = scratch;
      if (c < 0) {
        std::fill_n(scratch, width_, 0.0f);
      } else {
        row = RowAsFloats(c, scratch);
      }
      execution_.dense.pack(row, 0, num_candidates_, width_, s, s + 1, row_panels_);
    }
  }

  // Candidates [begin, begin + n) of row i of G, with 0 where there is no candidate.
  void CopyGradient(int64_t i, int64_t begin, int64_t n, float* to) const {
    const float* from = gradients_.candidates + i * num_candidates_ + begin;
    std::copy_n(from, n, to);
    if (!has_padding_) return;
    for (int64_t j = 0; j < n; ++j) {
      if (batch_.candidates[begin + j] < 0) to[j] = 0;
    }
  }

  // dL/dH of n examples.
  void HiddenGradient(int64_t begin, int64_t n, int worker) {
    const float* g = gradients_.candidates + begin * num_candidates_;
    if (has_padding_) {
      float* masked = masked_ + worker * examples_of_task_ * num_candidates_;
      for (int64_t i = 0; i < n; ++i) {
        CopyGradient(begin + i, 0, num_candidates_, masked + i * num_candidates_);
      }
      g = masked;
    }
    float* to = hidden_gradient_ + begin * width_;
    execution_.dense.multiply(
        {g, num_candidates_, 1, row_panels_, num_candidates_, width_, to, width_, 1, 0}, 0, n,
        false);
    for (int64_t i = 0; i < n; ++i) AddLabelRows(begin + i, worker);
  }

  void AddLabelRows(int64_t i, int worker) {
    for (int64_t at = i * batch_.num_labels; at < (i + 1) * batch_.num_labels; ++at) {
      const int64_t label = batch_.labels[at];
      if (label < 0) continue;
      const float* row = RowAsFloats(label, row_scratch_ + worker * width_);
      execution_.dense.add(gradients_.labels[at], row, width_, hidden_gradient_ + i * width_);
    }
  }

  // dL/dW and dL/db of n candidates. Columns of G are copied first: they are far apart.
  void KernelGradient(int64_t begin, int64_t n, int worker) {
    float* columns = columns_ + worker * batch_.size * kCandidatesOfTask;
    float sums[kCandidatesOfTask] = {};
    for (int64_t i = 0; i < batch_.size; ++i) {
      float* to = columns + i * kCandidatesOfTask;
      CopyGradient(i, begin, n, to);
      execution_.dense.add(1, to, n, sums);
    }
    std::copy_n(sums, n, bias_gradient_ + begin);
    execution_.dense.multiply({columns, 1, kCandidatesOfTask, hidden_panels_, batch_.size, width_,
                               kernel_gradient_ + begin * width_, width_, 1, 0},
                              0, n, false);
  }

  void UpdateClasses(int64_t begin, int64_t end, int worker) {
    const auto class_at = [this](int64_t u) { return sorted_[first_places_[u]].class_id; };
    for (int64_t u = begin; u < std::min(begin + kRowsAhead, end); ++u) Prefetch(class_at(u));
    for (int64_t u = begin; u < end; ++u) {
      if (u + kRowsAhead < end) Prefetch(class_at(u + kRowsAhead));
      UpdateClass(u, worker);
    }
  }

  void UpdateClass(int64_t u, int worker) {
    const int64_t begin = first_places_[u], end = first_places_[u + 1];
    const int64_t c = sorted_[begin].class_id;
    const int64_t only = static_cast<int64_t>(sorted_[begin].place) - num_labels_total_;
    if (end - begin == 1 && only >= 0) {
      return Update(c, kernel_gradient_ + only * width_, bias_gradient_[only]);
    }
    float* sum = row_scratch_ + worker * width_;
    float bias_sum = 0;
    std::fill_n(sum, width_, 0.0f);
    for (int64_t i = begin; i < end; ++i) AddPlace(sorted_[i].place, sum, &bias_sum);
    Update(c, sum, bias_sum);
  }

  void AddPlace(int64_t place, float* sum, float* bias_sum) const {
    if (place < num_labels_total_) {
      const float g = gradients_.labels[place];
      const float* h = batch_.hidden + place / batch_.num_labels * width_;
      execution_.dense.add(g, h, width_, sum);
      *bias_sum += g;
    } else {
      const int64_t s = place - num_labels_total_;
      execution_.dense.add(1, kernel_gradient_ + s * width_, width_, sum);
      *bias_sum += bias_gradient_[s];
    }
  }

  const int64_t num_candidates_, num_labels_total_;
  int64_t examples_of_task_ = 0, num_classes_ = 0;
  bool has_padding_ = false;
  float* row_panels_ = nullptr;       // W_S
  float* hidden_panels_ = nullptr;    // H
  float* row_scratch_ = nullptr;      // [D] a worker
  float* masked_ = nullptr;           // some rows of G a worker
  float* columns_ = nullptr;          // [N, kCandidatesOfTask] a worker
  float* kernel_gradient_ = nullptr;  // dL/dW_S, [S, D]
  float* bias_gradient_ = nullptr;    // [S]
  ClassPlace* sorted_ = nullptr;
  ClassPlace* spare_ = nullptr;
  int64_t* first_places_ = nullptr;
};

// With candidates per example, the gradients of logits form a sparse matrix G of examples and
// classes. Its entries are sorted into buckets, ranges of classes. Within a bucket entries are
// first ordered by example, to add rows of W, which are then in the caches, to dL/dH; then they are
// sorted by class, to compute the gradient of each row, and to update it.
//
// Buckets form groups with about the same number of entries. One worker processes a group, with a
// separate dL/dH; these are added up at the end. Buckets and groups depend only on the batch, so
// that the result does not depend on the number of workers.
class OwnCandidateStep : CandidateStep {
 public:
  explicit OwnCandidateStep(const CandidateStep& step)
      : CandidateStep(step),
        row_stride_(BlocksOf(width_, kFloatsOfLine) * kFloatsOfLine),
        num_entries_(batch_.size * (batch_.num_labels + batch_.num_candidates)),
        buckets_(batch_, weights_.num_classes, execution_) {
    const int64_t copy = std::max<int64_t>(batch_.size * width_, 1);
    const int64_t per_copy = kEntriesOfExample * std::max<int64_t>(batch_.size, 1);
    num_groups_ =
        std::min({BlocksOf(num_entries_, kEntriesOfGroup), kMostGroups, buckets_.size(),
                  std::max(std::min(kMostPartials / copy, num_entries_ / per_copy), kFewGroups)});
    entries_ = execution_.Take<ClassTerm>(num_entries_);
    spare_ = execution_.Take<ClassTerm>(num_entries_);
    if (hidden_gradient_ != nullptr) {
      partials_ = execution_.Take<float>(num_groups_ * batch_.size * width_);
    }
    row_gradients_ = execution_.Take<float>(execution_.num_workers * row_stride_);
  }

  void Run() {
    const auto count = [this](int64_t chunk, int) { buckets_.Count(chunk); };
    const auto place = [this](int64_t, int) { buckets_.Place(); };
    const auto deal = [this](int64_t chunk, int) { DealEntries(chunk); };
    const auto groups = [this](int64_t group, int worker) { UpdateGroup(group, worker); };
    const auto sum = [this](int64_t begin, int64_t end, int) { SumGroups(begin, end); };
    const int64_t num_summed = hidden_gradient_ == nullptr ? 0 : batch_.size;
    execution_.Run({{"count classes", {{buckets_.num_chunks(), count}}},
                    {"place classes", {{1, place}}},
                    {"deal out classes", {{buckets_.num_chunks(), deal}}},
                    {"update rows", {{num_groups_, groups}}},
                    {"sum hidden gradient", {InBlocks(num_summed, kExamplesOfTask, sum)}}});
  }

 private:
  static constexpr int64_t kEntriesOfGroup = 512;
  // In a group, or its copy of dL/dH costs more than they.
  static constexpr int64_t kEntriesOfExample = 4;
  static constexpr int64_t kMostGroups = 64;
  static constexpr int64_t kMostPartials = 1 << 24;  // floats in all copies of dL/dH
  static constexpr int64_t kFewGroups = 4;           // may be more than that
  static constexpr int64_t kExamplesOfTask = 16;
  static constexpr int64_t kFloatsOfLine = 16;  // workers share no line

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
    float* partial = nullptr;
    if (partials_ != nullptr) {
      partial = partials_ + group * batch_.size * width_;
      std::fill_n(partial, batch_.size * width_, 0.0f);
    }
    const int64_t end = FirstBucket(group + 1);
    for (int64_t bucket = FirstBucket(group); bucket < end; ++bucket) {
      ClassTerm* begin = entries_ + buckets_.Begin(bucket);
      const int64_t n = buckets_.Begin(bucket + 1) - buckets_.Begin(bucket);
      if (partial != nullptr) {
        buckets_.ReadRows(bucket, weights_);
        execution_.rows.add_rows(begin, n, weights_.kernel, weights_.is_bfloat16, width_, partial);
      }
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
    const auto prefetch_next = [&] {
      Prefetch(ahead->class_id);
      ahead = EndOfClass(ahead, end);
    };
    for (int64_t row = 0; row < kRowsAhead && ahead < end; ++row) prefetch_next();
    for (const ClassTerm* next; begin < end; begin = next) {
      if (ahead < end) prefetch_next();
      next = EndOfClass(begin, end);
      UpdateClass(begin, next - begin, worker);
    }
  }

  void UpdateClass(const ClassTerm* terms, int64_t n, int worker) const {
    float* gradient = row_gradients_ + worker * row_stride_;
    execution_.rows.sum_examples(terms, n, batch_.hidden, width_, gradient);
    float bias_gradient = 0;
    for (int64_t t = 0; t < n; ++t) bias_gradient += terms[t].gradient;
    Update(terms->class_id, gradient, bias_gradient);
  }

  void SumGroups(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* to = hidden_gradient_ + i * width_;
      std::fill_n(to, width_, 0.0f);
      for (int64_t group = 0; group < num_groups_; ++group) {
        execution_.dense.add(1, partials_ + (group * batch_.size + i) * width_, width_, to);
      }
    }
  }

  const int64_t row_stride_, num_entries_;
  ClassBuckets buckets_;
  int64_t num_groups_;
  ClassTerm* entries_;         // by bucket, then by class
  ClassTerm* spare_;           // as many
  float* partials_ = nullptr;  // [groups, N, D]: dL/dH, if it is wanted
  float* row_gradients_;       // [workers, D], rounded up
};

}  // namespace

void CandidateUpdate(const LayerWeights& weights, const LayerRows& rows,
                     const CandidateBatch& batch, const CandidateGradients& gradients,
                     const RowUpdater* updater, const Execution& execution,
                     float* hidden_gradient) {
  const Workspace::Scope scope(execution.workspace);
  const CandidateStep step(weights, rows, batch, gradients, updater, execution, hidden_gradient);
  if (batch.own) {
    OwnCandidateStep(step).Run();
  } else {
    SharedCandidateStep(step).Run();
  }
}

}  // namespace tfx::core
