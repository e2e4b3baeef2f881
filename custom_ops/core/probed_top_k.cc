// SPDX-License-Identifier: Apache-2.0

#include "core/probed_top_k.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

namespace tfx::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
        isa_(BoundedTopKIsaOf(execution.set)),
        logits_isa_(StreamedLogitsIsaOf(execution.set)),
        norms_(execution.Take<float>(in_.batch)),
        pass_(BoundsPassOf(in_, bounded, norms_)) {}

  // Returns false if bounds or lists don't hold.
  bool Run() {
    if (!AreLists() || !TakeNorms(in_, norms_)) return false;
    const int64_t rows = lists_.num_lists + in_.num_classes * num_probed_ / lists_.num_lists;
    execution_.parallel_for(
        in_.batch,
        [this](int64_t begin, int64_t end) {
          Scratch scratch;
          for (int64_t b = begin; b < end && !fails_; ++b) Search(b, &scratch);
        },
        1000 + rows * in_.width / 16);
    return !fails_;
  }

 private:
  struct Scratch {
    std::vector<float> closeness;
    std::vector<ScoredClass> lists;
    std::vector<ScoredClass> heap;
    std::vector<BoundedClass> survivors;
    std::vector<ScoredClass> best;
    std::vector<float> packed, row;
  };

  void Search(int64_t b, Scratch* scratch) {
    if (!ChooseLists(b, scratch)) {
      fails_ = true;
      return;
    }
    scratch->heap.resize(in_.k);
    scratch->survivors.resize(RoomFor(scratch->lists));
    BoundsWorker worker = {scratch->heap.data(), 0, -kInfinity, scratch->survivors.data(), 0};
    BoundsPass pass = pass_;
    pass.hidden += b * in_.width;
    pass.batch = 1;
    pass.norms += b;
    for (const ScoredClass& list : scratch->lists) {
      isa_.bounds(pass, BeginOf(list.id), lists_.ends[list.id], &worker);
    }
    RuleOut(worker.threshold, &worker);
    Rank(b, worker, scratch);
  }

  // The closest lists, closest first. Returns false if a center is not a number.
  bool ChooseLists(int64_t b, Scratch* scratch) const {
    const int64_t blocks = (lists_.num_lists + kClassesOfBlock - 1) / kClassesOfBlock;
    scratch->closeness.resize(blocks * kClassesOfBlock);
    isa_.closeness(lists_, in_.width, in_.hidden + b * in_.width,
                   static_cast<float>(std::hypot(norms_[b], 1.0)), scratch->closeness.data());
    scratch->lists.resize(lists_.num_lists);
    for (int64_t l = 0; l < lists_.num_lists; ++l) {
      if (std::isnan(scratch->closeness[l])) return false;
      scratch->lists[l] = {scratch->closeness[l], static_cast<int32_t>(l)};
    }
    const auto end = scratch->lists.begin() + num_probed_;
    std::partial_sort(scratch->lists.begin(), end, scratch->lists.end(), RanksAbove);
    scratch->lists.resize(num_probed_);
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
    return end <= lists_.num_blocks && end * kClassesOfBlock >= in_.num_classes;
  }

  // The number of rows of some lists.
  int64_t RoomFor(const std::vector<ScoredClass>& lists) const {
    int64_t blocks = 0;
    for (const ScoredClass& list : lists) blocks += lists_.ends[list.id] - BeginOf(list.id);
    return blocks * kClassesOfBlock;
  }

  bool IsClass(int32_t id) const { return id >= 0 && id < in_.num_classes; }

  // The number of classes of some lists.
  int64_t ClassesIn(const std::vector<ScoredClass>& lists) const {
    int64_t number = 0;
    for (const ScoredClass& list : lists) {
      const int32_t* classes = pass_.bounded.classes;
      number += std::count_if(classes + BeginOf(list.id) * kClassesOfBlock,
                              classes + int64_t{lists_.ends[list.id]} * kClassesOfBlock,
                              [this](int32_t id) { return IsClass(id); });
    }
    return number;
  }

  // Ranks those that were not ruled out by their logits.
  void Rank(int64_t b, const BoundsWorker& found, Scratch* scratch) {
    scratch->packed.resize(RowLogits::Lanes(logits_isa_, 1) * in_.width);
    scratch->row.resize(in_.width);
    const RowLogits logits(in_, logits_isa_, b, 1, scratch->packed.data());
    std::vector<ScoredClass>& best = scratch->best;
    best.clear();
    for (int64_t i = 0; i < found.num_survivors; ++i) {
      const BoundedClass& bounds = found.survivors[i];
      const int32_t id = pass_.bounded.classes[bounds.id];
      if (!IsClass(id)) continue;
      const float logit = logits(0, id, scratch->row.data());
      if (IsOutOfBounds(bounds, logit)) fails_ = true;
      best.push_back({logit, id});
    }
    const int64_t number = std::min<int64_t>(in_.k, best.size());
    // Fewer than there are: bounds of no W.
    if (number < in_.k && number < ClassesIn(scratch->lists)) fails_ = true;
    WriteBest(b, in_.k, &best, out_);
  }

  const StreamedLogitsInputs& in_;
  const RowLists& lists_;
  const int64_t num_probed_;
  const Execution& execution_;
  const BoundedTopKOutputs& out_;
  const BoundedTopKIsa& isa_;
  const StreamedLogitsIsa& logits_isa_;
  std::atomic<bool> fails_{false};
  float* norms_;  // [B]
  BoundsPass pass_;
};

}  // namespace

void ProbedTopK(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                const RowLists& lists, int64_t num_probed, const Execution& execution,
                const BoundedTopKOutputs& outputs) {
  const Workspace::Scope scope(execution.workspace);
  const bool pays = inputs.batch > 0 && inputs.k > 0 && inputs.width <= kMostWidthOfBounds;
  if (pays && ProbedTopKRun(inputs, bounded, lists, num_probed, execution, outputs).Run()) {
    return;
  }
  TopKOfAllRows(inputs, execution, outputs);
}

}  // namespace tfx::core
