// SPDX-License-Identifier: Apache-2.0

#include "core/probed_top_k.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace tfx::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kMostBytes = int64_t{1} << 26;  // for the workers' parts of long lists

class ProbedTopKRun {
 public:
  ProbedTopKRun(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                const RowLists& lists, int64_t num_probed, const Execution& execution,
                const BoundedTopKOutputs& outputs)
      : in_(inputs),
        lists_(lists),
        num_probed_(num_probed),
        execution_(execution),
        out_(outputs),
        isa_(TFX_OF_SET(kBoundedTopK, execution.set)),
        logits_isa_(TFX_OF_BFLOAT16_SET(kStreamedLogits, execution.set)),
        norms_(execution.Take<float>(in_.batch)),
        pass_(BoundsPassOf(in_, bounded, norms_)) {}

  // Returns false if bounds or lists don't hold.
  bool Run() {
    if (!AreLists() || !TakeNorms(in_, norms_)) return false;
    const int64_t rows =
        lists_.num_lists + in_.weights.num_classes * num_probed_ / lists_.num_lists;
    const int workers =
        TakeScratch(execution_.WorkersFor(in_.batch, 1000 + rows * in_.weights.width / 16));
    execution_.ForRanges(workers, in_.batch, [this](int64_t begin, int64_t end, int w) {
      for (int64_t b = begin; b < end && !fails_; ++b) Search(b, &scratch_[w]);
    });
    return !fails_;
  }

 private:
  // Of a worker.
  struct Scratch {
    float* closeness;         // of all lists
    ScoredClass* lists;       // the closest of them come first
    ScoredClass* heap;        // [k]
    BoundedClass* survivors;  // room for the longest lists
    ScoredClass* best;        // as much
    float *packed, *row;
  };

  // Returns for how many workers.
  int TakeScratch(int most_workers) {
    const int64_t rows = MostRows();
    const int64_t bytes = rows * static_cast<int64_t>(sizeof(BoundedClass) + sizeof(ScoredClass));
    const int workers = static_cast<int>(
        std::clamp<int64_t>(kMostBytes / std::max<int64_t>(bytes, 1), 1, most_workers));
    scratch_ = execution_.Take<Scratch>(workers);
    for (int w = 0; w < workers; ++w) {
      scratch_[w] = {
          execution_.Take<float>(BlocksOf(lists_.num_lists, kClassesOfBlock) * kClassesOfBlock),
          execution_.Take<ScoredClass>(lists_.num_lists),
          execution_.Take<ScoredClass>(in_.k),
          execution_.Take<BoundedClass>(rows),
          execution_.Take<ScoredClass>(rows),
          execution_.Take<float>(RowLogits::Lanes(logits_isa_, 1) * in_.weights.width),
          execution_.Take<float>(in_.weights.width)};
    }
    return workers;
  }

  // Of num_probed lists, at most.
  int64_t MostRows() const {
    const Workspace::Scope scope(execution_.workspace);
    int64_t* sizes = execution_.Take<int64_t>(lists_.num_lists);
    for (int64_t l = 0; l < lists_.num_lists; ++l) sizes[l] = lists_.ends[l] - BeginOf(l);
    std::nth_element(sizes, sizes + num_probed_ - 1, sizes + lists_.num_lists, std::greater<>());
    return std::accumulate(sizes, sizes + num_probed_, int64_t{0}) * kClassesOfBlock;
  }

  void Search(int64_t b, Scratch* scratch) {
    if (!ChooseLists(b, scratch)) {
      fails_ = true;
      return;
    }
    BoundsWorker worker = {scratch->heap, 0, -kInfinity, scratch->survivors, 0};
    BoundsPass pass = pass_;
    pass.hidden += b * in_.weights.width;
    pass.batch = 1;
    pass.norms += b;
    for (int64_t i = 0; i < num_probed_; ++i) {
      const int32_t list = scratch->lists[i].id;
      isa_.bounds(pass, BeginOf(list), lists_.ends[list], &worker);
    }
    worker.num_survivors = RuleOut(worker.threshold, worker.survivors, worker.num_survivors);
    Rank(b, worker, scratch);
  }

  // The closest lists, closest first. Returns false if a center is not a number.
  bool ChooseLists(int64_t b, Scratch* scratch) const {
    isa_.closeness(lists_, in_.weights.width, in_.hidden + b * in_.weights.width,
                   static_cast<float>(std::hypot(norms_[b], 1.0)), scratch->closeness);
    for (int64_t l = 0; l < lists_.num_lists; ++l) {
      if (std::isnan(scratch->closeness[l])) return false;
      scratch->lists[l] = {scratch->closeness[l], static_cast<int32_t>(l)};
    }
    std::partial_sort(scratch->lists, scratch->lists + num_probed_,
                      scratch->lists + lists_.num_lists, RanksAbove);
    return true;
  }

  int64_t BeginOf(int64_t list) const { return list == 0 ? 0 : lists_.ends[list - 1]; }

  // Says whether ends rise, and lists have room for all classes.
  bool AreLists() const {
    int64_t end = 0;
    for (int64_t l = 0; l < lists_.num_lists; ++l) {
      if (lists_.ends[l] < end) return false;
      end = lists_.ends[l];
    }
    return end <= lists_.num_blocks && end * kClassesOfBlock >= in_.weights.num_classes;
  }

  bool IsClass(int32_t id) const { return id >= 0 && id < in_.weights.num_classes; }

  // The number of classes of the closest lists.
  int64_t ClassesIn(const ScoredClass* lists) const {
    int64_t number = 0;
    for (int64_t i = 0; i < num_probed_; ++i) {
      const int32_t* classes = pass_.bounded.classes;
      number += std::count_if(classes + BeginOf(lists[i].id) * kClassesOfBlock,
                              classes + int64_t{lists_.ends[lists[i].id]} * kClassesOfBlock,
                              [this](int32_t id) { return IsClass(id); });
    }
    return number;
  }

  // Ranks the classes that were not ruled out, by their logits.
  void Rank(int64_t b, const BoundsWorker& found, Scratch* scratch) {
    const RowLogits logits(in_, logits_isa_, b, 1, scratch->packed);
    int64_t n = 0;
    for (int64_t i = 0; i < found.num_survivors; ++i) {
      const BoundedClass& bounds = found.survivors[i];
      const int32_t id = pass_.bounded.classes[bounds.id];
      if (!IsClass(id)) continue;
      const float logit = logits(0, id, scratch->row);
      if (IsOutOfBounds(bounds, logit)) fails_ = true;
      scratch->best[n++] = {logit, id};
    }
    // Fewer than there are: bounds of no W.
    if (n < in_.k && n < ClassesIn(scratch->lists)) fails_ = true;
    WriteBest(b, in_.k, scratch->best, n, out_);
  }

  const StreamedLogitsInputs& in_;
  const RowLists& lists_;
  const int64_t num_probed_;
  const Execution& execution_;
  const BoundedTopKOutputs& out_;
  const BoundedTopKIsa& isa_;
  const StreamedLogitsIsa& logits_isa_;
  std::atomic<bool> fails_{false};
  float* norms_;                // [B]
  Scratch* scratch_ = nullptr;  // by worker
  BoundsPass pass_;
};

}  // namespace

void ProbedTopK(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                const RowLists& lists, int64_t num_probed, const Execution& execution,
                const BoundedTopKOutputs& outputs) {
  const Workspace::Scope scope(execution.workspace);
  const bool pays = inputs.batch > 0 && inputs.k > 0 && inputs.weights.width <= kMostWidthOfBounds;
  if (pays && ProbedTopKRun(inputs, bounded, lists, num_probed, execution, outputs).Run()) {
    return;
  }
  TopKOfAllRows(inputs, execution, outputs);
}

}  // namespace tfx::core
