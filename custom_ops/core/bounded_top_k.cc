// SPDX-License-Identifier: Apache-2.0

#include "core/bounded_top_k.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace tfx::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kMostExamples = 8;  // a panel of streamed logits, whatever the instruction set
constexpr int64_t kClassesOfChunk = 32 * kClassesOfBlock;

class BoundedTopKRun {
 public:
  BoundedTopKRun(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                 const Execution& execution, const BoundedTopKOutputs& outputs)
      : in_(inputs),
        execution_(execution),
        out_(outputs),
        isa_(BoundedTopKIsaOf(execution.set)),
        most_candidates_(in_.num_classes / 8),
        workers_(execution.num_workers * in_.batch),
        candidates_(in_.batch),
        norms_(execution.Take<float>(in_.batch)),
        pass_(BoundsPassOf(in_, bounded, norms_)),
        logits_(in_, StreamedLogitsIsaOf(execution.set), 0, in_.batch, PackedHidden()) {
    for (BoundsWorker& worker : workers_) {
      worker = {execution.Take<ScoredClass>(in_.k), 0, -kInfinity,
                execution.Take<BoundedClass>(most_candidates_ + kClassesOfChunk), 0};
    }
  }

  // Returns false if bounds don't hold, or too many classes can't be ruled out.
  bool Run() {
    if (!TakeNorms(in_, norms_)) return false;
    const int64_t num_chunks = (in_.num_classes + kClassesOfChunk - 1) / kClassesOfChunk;
    const auto bound = [this](int64_t chunk, int worker) { BoundChunk(chunk, worker); };
    execution_.Run({{"bounds", {{num_chunks, bound}}}});
    for (int64_t b = 0; b < in_.batch && !fails_; ++b) CollectCandidates(b);
    if (fails_) return false;
    for (int64_t b = 0; b < in_.batch && !fails_; ++b) Rank(b);
    return !fails_;
  }

 private:
  float* PackedHidden() {
    const int32_t lanes = RowLogits::Lanes(StreamedLogitsIsaOf(execution_.set), in_.batch);
    return execution_.Take<float>(lanes * in_.width);
  }

  void BoundChunk(int64_t chunk, int worker) {
    constexpr int64_t kBlocks = kClassesOfChunk / kClassesOfBlock;
    const int64_t num_blocks = (in_.num_classes + kClassesOfBlock - 1) / kClassesOfBlock;
    BoundsWorker* own = workers_.data() + worker * in_.batch;
    for (int64_t b = 0; b < in_.batch; ++b) {
      if (own[b].num_survivors > most_candidates_) RuleOut(own[b].threshold, &own[b]);
      if (own[b].num_survivors > most_candidates_) fails_ = true;
    }
    if (fails_) return;
    isa_.bounds(pass_, chunk * kBlocks, std::min((chunk + 1) * kBlocks, num_blocks), own);
  }

  // Those survivors of all workers that the k-th largest of all lower bounds doesn't rule out.
  void CollectCandidates(int64_t b) {
    std::vector<float> lower;
    for (size_t w = b; w < workers_.size(); w += in_.batch) {
      for (int64_t i = 0; i < workers_[w].heap_size; ++i)
        lower.push_back(workers_[w].heap[i].score);
    }
    float threshold = -kInfinity;
    if (static_cast<int64_t>(lower.size()) >= in_.k) {
      std::nth_element(lower.begin(), lower.begin() + (in_.k - 1), lower.end(), std::greater<>());
      threshold = lower[in_.k - 1];
    }
    for (size_t w = b; w < workers_.size(); w += in_.batch) {
      RuleOut(threshold, &workers_[w]);
      const BoundedClass* survivors = workers_[w].survivors;
      candidates_[b].insert(candidates_[b].end(), survivors, survivors + workers_[w].num_survivors);
    }
    const auto number = static_cast<int64_t>(candidates_[b].size());
    if (number > most_candidates_ || number < in_.k) fails_ = true;  // fewer: bounds of no W
  }

  // Ranks an example's candidates by their logits.
  void Rank(int64_t b) {
    const std::vector<BoundedClass>& candidates = candidates_[b];
    std::vector<ScoredClass> best(candidates.size());
    execution_.parallel_for(
        static_cast<int64_t>(best.size()),
        [&](int64_t begin, int64_t end) {
          std::vector<float> scratch(in_.width);
          for (int64_t i = begin; i < end; ++i) {
            const BoundedClass& bounds = candidates[i];
            const float logit = logits_(b, bounds.id, scratch.data());
            if (IsOutOfBounds(bounds, logit)) fails_ = true;
            best[i] = {logit, bounds.id};
          }
        },
        100 + in_.width * std::min<int64_t>(in_.batch, 4) / 4);
    WriteBest(b, in_.k, &best, out_);
  }

  const StreamedLogitsInputs& in_;
  const Execution& execution_;
  const BoundedTopKOutputs& out_;
  const BoundedTopKIsa& isa_;
  const int64_t most_candidates_;
  std::atomic<bool> fails_{false};
  std::vector<BoundsWorker> workers_;                  // [num_workers, B]
  std::vector<std::vector<BoundedClass>> candidates_;  // of each example
  float* norms_;                                       // [B]
  BoundsPass pass_;
  RowLogits logits_;
};

}  // namespace

void BoundedTopK(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                 const Execution& execution, const BoundedTopKOutputs& outputs) {
  const Workspace::Scope scope(execution.workspace);
  const bool pays = inputs.batch > 0 && inputs.batch <= kMostExamples && inputs.k > 0 &&
                    inputs.k <= inputs.num_classes / 32 && inputs.width <= kMostWidthOfBounds;
  if (pays && BoundedTopKRun(inputs, bounded, execution, outputs).Run()) return;
  TopKOfAllRows(inputs, execution, outputs);
}

}  // namespace tfx::core
