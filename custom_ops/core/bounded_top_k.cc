// SPDX-License-Identifier: Apache-2.0

#include "core/bounded_top_k.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>

namespace tfx::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kMostExamples = 8;  // a panel of streamed logits, whatever the instruction set
constexpr int64_t kClassesOfChunk = 32 * kClassesOfBlock;

// Of survivors of one worker, in a part of the memory for all.
constexpr int64_t kMostOfSegment = 4096;

// Survivors of an example lie in segments. A worker fills one; when it is full of classes that
// still can't be ruled out, the worker takes another. There are as many as it takes for an eighth
// of the classes, each half full, and one a worker.
class BoundedTopKRun {
 public:
  BoundedTopKRun(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                 const Execution& execution, const BoundedTopKOutputs& outputs)
      : in_(inputs),
        execution_(execution),
        out_(outputs),
        isa_(TFX_OF_SET(kBoundedTopK, execution.set)),
        most_candidates_(in_.weights.num_classes / 8),
        size_of_segment_(std::clamp<int64_t>(most_candidates_, 1, kMostOfSegment)),
        num_segments_(2 * most_candidates_ / size_of_segment_ + execution.num_workers),
        bounds_(execution.Take<BoundsWorker>(execution.num_workers * in_.batch)),
        segment_of_(execution.Take<int64_t>(execution.num_workers * in_.batch)),
        segments_(execution.Take<Segment>(in_.batch * num_segments_)),
        norms_(execution.Take<float>(in_.batch)),
        scratch_(execution.Take<float>(execution.num_workers * in_.weights.width)),
        pass_(BoundsPassOf(in_, bounded, norms_)),
        logits_(in_, TFX_OF_BFLOAT16_SET(kStreamedLogits, execution.set), 0, in_.batch,
                PackedHidden()) {
    const int64_t room = size_of_segment_ + kClassesOfChunk;
    BoundedClass* survivors = execution.Take<BoundedClass>(in_.batch * num_segments_ * room);
    for (int64_t i = 0; i < in_.batch * num_segments_; ++i) {
      segments_[i] = {survivors + i * room, 0};
    }
    for (int64_t w = 0; w < execution.num_workers; ++w) {
      for (int64_t b = 0; b < in_.batch; ++b) {
        bounds_[w * in_.batch + b] = {execution.Take<ScoredClass>(in_.k), 0, -kInfinity,
                                      SegmentsOf(b)[w].survivors, 0};
        segment_of_[w * in_.batch + b] = w;
      }
    }
    for (auto& next : next_segment_) next = execution.num_workers;
  }

  // Returns false if bounds don't hold, or too many classes can't be ruled out.
  bool Run() {
    if (!TakeNorms(in_, norms_)) return false;
    const int64_t num_chunks = BlocksOf(in_.weights.num_classes, kClassesOfChunk);
    const auto bound = [this](int64_t chunk, int worker) { BoundChunk(chunk, worker); };
    execution_.Run({{"bounds", {{num_chunks, bound}}}});
    for (int64_t b = 0; b < in_.batch && !fails_; ++b) candidates_[b] = CollectCandidates(b);
    if (fails_) return false;
    for (int64_t b = 0; b < in_.batch && !fails_; ++b) Rank(b);
    return !fails_;
  }

 private:
  struct Segment {
    BoundedClass* survivors;
    int64_t size;
  };

  Segment* SegmentsOf(int64_t b) { return segments_ + b * num_segments_; }

  float* PackedHidden() {
    const int32_t lanes =
        RowLogits::Lanes(TFX_OF_BFLOAT16_SET(kStreamedLogits, execution_.set), in_.batch);
    return execution_.Take<float>(lanes * in_.weights.width);
  }

  void BoundChunk(int64_t chunk, int worker) {
    constexpr int64_t kBlocks = kClassesOfChunk / kClassesOfBlock;
    const int64_t num_blocks = BlocksOf(in_.weights.num_classes, kClassesOfBlock);
    for (int64_t b = 0; b < in_.batch; ++b) MakeRoom(worker, b);
    if (fails_) return;
    isa_.bounds(pass_, chunk * kBlocks, std::min((chunk + 1) * kBlocks, num_blocks),
                bounds_ + worker * in_.batch);
  }

  void MakeRoom(int64_t worker, int64_t b) {
    BoundsWorker& own = bounds_[worker * in_.batch + b];
    if (own.num_survivors <= size_of_segment_) return;
    own.num_survivors = RuleOut(own.threshold, own.survivors, own.num_survivors);
    if (own.num_survivors <= size_of_segment_ / 2) return;
    int64_t& segment = segment_of_[worker * in_.batch + b];
    SegmentsOf(b)[segment].size = own.num_survivors;
    segment = next_segment_[b]++;
    if (segment >= num_segments_) {
      fails_ = true;
      return;
    }
    own.survivors = SegmentsOf(b)[segment].survivors;
    own.num_survivors = 0;
  }

  // Those survivors of all workers that the k-th largest of all lower bounds doesn't rule out.
  Segment CollectCandidates(int64_t b) {
    float* lower = execution_.Take<float>(execution_.num_workers * in_.k);
    float* end = lower;
    for (int64_t w = 0; w < execution_.num_workers; ++w) {
      const BoundsWorker& worker = bounds_[w * in_.batch + b];
      SegmentsOf(b)[segment_of_[w * in_.batch + b]].size = worker.num_survivors;
      for (int64_t i = 0; i < worker.heap_size; ++i) *end++ = worker.heap[i].score;
    }
    float threshold = -kInfinity;
    if (end - lower >= in_.k) {
      std::nth_element(lower, lower + (in_.k - 1), end, std::greater<>());
      threshold = lower[in_.k - 1];
    }
    Segment all = {nullptr, 0};
    for (Segment* s = SegmentsOf(b); s < SegmentsOf(b + 1); ++s) {
      s->size = RuleOut(threshold, s->survivors, s->size);
      all.size += s->size;
    }
    if (all.size > most_candidates_ || all.size < in_.k) fails_ = true;  // fewer: bounds of no W
    if (fails_) return all;
    BoundedClass* to = all.survivors = execution_.Take<BoundedClass>(all.size);
    for (const Segment* s = SegmentsOf(b); s < SegmentsOf(b + 1); ++s) {
      to = std::copy_n(s->survivors, s->size, to);
    }
    return all;
  }

  // Ranks an example's candidates by their logits.
  void Rank(int64_t b) {
    const Workspace::Scope scope(execution_.workspace);
    const Segment& candidates = candidates_[b];
    ScoredClass* best = execution_.Take<ScoredClass>(candidates.size);
    const int64_t cost = 100 + in_.weights.width * std::min<int64_t>(in_.batch, 4) / 4;
    execution_.ForRanges(execution_.WorkersFor(candidates.size, cost), candidates.size,
                         [&](int64_t begin, int64_t end, int worker) {
                           for (int64_t i = begin; i < end; ++i) {
                             const BoundedClass& bounds = candidates.survivors[i];
                             const float logit =
                                 logits_(b, bounds.id, scratch_ + worker * in_.weights.width);
                             if (IsOutOfBounds(bounds, logit)) fails_ = true;
                             best[i] = {logit, bounds.id};
                           }
                         });
    WriteBest(b, in_.k, best, candidates.size, out_);
  }

  const StreamedLogitsInputs& in_;
  const Execution& execution_;
  const BoundedTopKOutputs& out_;
  const BoundedTopKIsa& isa_;
  const int64_t most_candidates_, size_of_segment_, num_segments_;
  std::atomic<bool> fails_{false};
  BoundsWorker* const bounds_;                                    // [num_workers, B]
  int64_t* const segment_of_;                                     // [num_workers, B]: that it fills
  Segment* const segments_;                                       // [B, num_segments]
  std::array<std::atomic<int64_t>, kMostExamples> next_segment_;  // of each example
  std::array<Segment, kMostExamples> candidates_;                 // of each example
  float* const norms_;                                            // [B]
  float* const scratch_;                                          // a worker: [D]
  BoundsPass pass_;
  RowLogits logits_;
};

}  // namespace

void BoundedTopK(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                 const Execution& execution, const BoundedTopKOutputs& outputs) {
  const Workspace::Scope scope(execution.workspace);
  const bool pays = inputs.batch > 0 && inputs.batch <= kMostExamples && inputs.k > 0 &&
                    inputs.k <= inputs.weights.num_classes / 32 &&
                    inputs.weights.width <= kMostWidthOfBounds;
  if (pays && BoundedTopKRun(inputs, bounded, execution, outputs).Run()) return;
  TopKOfAllRows(inputs, execution, outputs);
}

}  // namespace tfx::core
