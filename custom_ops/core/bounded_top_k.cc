// SPDX-License-Identifier: Apache-2.0

#include "core/bounded_top_k.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/streamed_logits_isa.h"

namespace tfx::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kMostExamples = 8;  // a panel of streamed logits, whatever the instruction set
constexpr int64_t kMostWidth = int64_t{1} << 20;
constexpr int64_t kClassesOfChunk = 32 * kClassesOfBlock;

const BoundedTopKIsa& IsaOf(InstructionSet set) {
#ifdef __x86_64__
  if (set >= InstructionSet::kAvx512) return avx512::kBoundedTopK;
  if (set == InstructionSet::kAvx2) return avx2::kBoundedTopK;
#endif
  (void)set;
  return baseline::kBoundedTopK;
}

// All classes get their logits.
void FromAllRows(const StreamedLogitsInputs& inputs, const Execution& execution,
                 const BoundedTopKOutputs& outputs) {
  float* logsumexp = execution.Take<float>(inputs.batch);
  StreamedLogits(inputs, execution,
                 {logsumexp, nullptr, nullptr, outputs.top_scores, outputs.top_ids, nullptr});
  std::fill_n(outputs.num_candidates, inputs.batch, inputs.num_classes);
}

class BoundedTopKRun {
 public:
  BoundedTopKRun(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                 const Execution& execution, const BoundedTopKOutputs& outputs)
      : in_(inputs),
        execution_(execution),
        out_(outputs),
        bounds_isa_(IsaOf(execution.set)),
        logits_isa_(StreamedLogitsIsaOf(execution.set)),
        most_candidates_(in_.num_classes / 8),
        workers_(execution.num_workers * in_.batch),
        candidates_(in_.batch) {
    const LogitRows layer = {in_.kernel, in_.bias, in_.is_bfloat16, false, in_.width};
    const auto width = static_cast<double>(in_.width);
    const double roundings = width / 64 + 24;  // that a bias goes through
    norms_ = execution.Take<float>(in_.batch);
    pass_.bounded = bounded;
    pass_.layer = layer;
    pass_.num_classes = in_.num_classes;
    pass_.k = in_.k;
    pass_.hidden = in_.hidden;
    pass_.batch = in_.batch;
    pass_.norms = norms_;
    pass_.error_of_bias = static_cast<float>(1.01 * std::ldexp(roundings, -24));
    pass_.smallest_error = static_cast<float>(std::ldexp(4 * width + 64, -126));
    for (BoundsWorker& worker : workers_) {
      worker = {execution.Take<ScoredClass>(in_.k), 0, -kInfinity,
                execution.Take<BoundedClass>(most_candidates_ + kClassesOfChunk), 0};
    }
    PackPanel(layer);
  }

  // Returns false if bounds don't hold, or too many classes can't be ruled out.
  bool Run() {
    if (!TakeNorms()) return false;
    const int64_t num_chunks = (in_.num_classes + kClassesOfChunk - 1) / kClassesOfChunk;
    const auto bound = [this](int64_t chunk, int worker) { BoundChunk(chunk, worker); };
    execution_.Run({{"bounds", {{num_chunks, bound}}}});
    for (int64_t b = 0; b < in_.batch && !fails_; ++b) CollectCandidates(b);
    if (fails_) return false;
    for (int64_t b = 0; b < in_.batch && !fails_; ++b) Rank(b);
    return !fails_;
  }

 private:
  // The panel that StreamedLogits has for so few examples.
  void PackPanel(const LogitRows& layer) {
    panel_ = {};
    panel_.examples = static_cast<int32_t>(in_.batch);
    panel_.lanes = panel_.examples <= logits_isa_.vector_lanes ? logits_isa_.vector_lanes
                                                               : logits_isa_.panel_lanes;
    panel_.hidden_rows = in_.hidden;
    auto* hidden = execution_.Take<float>(panel_.lanes * in_.width);
    panel_.hidden = hidden;
    logits_isa_.pack_panel(panel_, in_.width, false, hidden);
    logits_ = {&panel_, 1, layer, 0, in_.k, false, 0, in_.shard.first, in_.shard.stride};
  }

  // Returns false if an h is too long, or has a NaN.
  bool TakeNorms() {
    for (int64_t b = 0; b < in_.batch; ++b) {
      double square = 0;
      for (int64_t d = 0; d < in_.width; ++d) {
        const double h = in_.hidden[b * in_.width + d];
        square += h * h;
      }
      if (!(square <= std::ldexp(1, 100))) return false;
      const double norm = std::sqrt(square) * (1 + std::ldexp(1, -20)) + std::ldexp(1, -100);
      norms_[b] = static_cast<float>(norm);
    }
    return true;
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
    bounds_isa_.bounds(pass_, chunk * kBlocks, std::min((chunk + 1) * kBlocks, num_blocks), own);
  }

  // Leaves survivors out that are below what has become of the threshold.
  static void RuleOut(float threshold, BoundsWorker* worker) {
    BoundedClass* end = worker->survivors + worker->num_survivors;
    end = std::remove_if(worker->survivors, end,
                         [=](const BoundedClass& bound) { return bound.upper < threshold; });
    worker->num_survivors = end - worker->survivors;
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
            const float logit = logits_isa_.target_logit(logits_, panel_, static_cast<int32_t>(b),
                                                         bounds.id, scratch.data());
            if (logit < bounds.lower || logit > bounds.upper) fails_ = true;  // of another W
            best[i] = {logit, bounds.id};
          }
        },
        100 + in_.width * std::min<int64_t>(in_.batch, 4) / 4);
    std::partial_sort(best.begin(), best.begin() + in_.k, best.end(), RanksAbove);
    for (int64_t i = 0; i < in_.k; ++i) {
      out_.top_scores[b * in_.k + i] = best[i].score;
      out_.top_ids[b * in_.k + i] = best[i].id;
    }
    out_.num_candidates[b] = static_cast<int64_t>(best.size());
  }

  const StreamedLogitsInputs& in_;
  const Execution& execution_;
  const BoundedTopKOutputs& out_;
  const BoundedTopKIsa& bounds_isa_;
  const StreamedLogitsIsa& logits_isa_;
  const int64_t most_candidates_;
  std::atomic<bool> fails_{false};
  std::vector<BoundsWorker> workers_;                  // [num_workers, B]
  std::vector<std::vector<BoundedClass>> candidates_;  // of each example
  float* norms_;                                       // [B]
  BoundsPass pass_;
  Panel panel_;
  StreamedLogitsPass logits_;
};

}  // namespace

void BoundedTopK(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                 const Execution& execution, const BoundedTopKOutputs& outputs) {
  const Workspace::Scope scope(execution.workspace);
  const bool pays = inputs.batch > 0 && inputs.batch <= kMostExamples && inputs.k > 0 &&
                    inputs.k <= inputs.num_classes / 32 && inputs.width <= kMostWidth;
  if (pays && BoundedTopKRun(inputs, bounded, execution, outputs).Run()) return;
  FromAllRows(inputs, execution, outputs);
}

}  // namespace tfx::core
