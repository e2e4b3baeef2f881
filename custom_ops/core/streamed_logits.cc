// SPDX-License-Identifier: Apache-2.0

#include "core/streamed_logits.h"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "core/streamed_logits_isa.h"

namespace tfx::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The number of classes that a worker processes at a time. It depends only on the problem, because
// the partition function is summed chunk by chunk.
int64_t ClassesOfChunk(int64_t num_classes, int64_t batch) {
  constexpr int64_t kSmallest = 480;  // a multiple of every tile, like 96
  const int64_t most_chunks =
      std::clamp<int64_t>((int64_t{1} << 20) / std::max<int64_t>(batch, 1), 16, 256);
  const int64_t even = BlocksOf(num_classes, most_chunks);
  return std::max(kSmallest, (even + 95) / 96 * 96);
}

class StreamedLogitsRun {
 public:
  StreamedLogitsRun(const StreamedLogitsInputs& inputs, const Execution& execution,
                    const StreamedLogitsOutputs& outputs)
      : in_(inputs),
        isa_(TFX_OF_BFLOAT16_SET(kStreamedLogits, execution.set)),
        execution_(execution),
        out_(outputs) {
    const int64_t num_panels = BlocksOf(in_.batch, isa_.panel_lanes);
    lanes_ = num_panels * isa_.panel_lanes;
    chunk_ = ClassesOfChunk(in_.weights.num_classes, in_.batch);
    num_chunks_ = BlocksOf(in_.weights.num_classes, chunk_);
    num_workers_ = std::min<int64_t>(execution.num_workers, num_chunks_);
    panels_.resize(num_panels);
    if (in_.keep != nullptr) keeper_.emplace(*in_.keep, in_.batch, lanes_, num_workers_, execution);
  }

  void Run() {
    TakeMemory();
    PackPanels();
    if (in_.filter != nullptr) SortExcluded();
    pass_ = {panels_.data(),
             static_cast<int64_t>(panels_.size()),
             {in_.weights.kernel, in_.weights.bias, in_.weights.is_bfloat16, in_.rounds,
              in_.weights.width},
             in_.num_labels,
             in_.k,
             keeper_.has_value(),
             keeper_ ? in_.keep->epsilon : 0,
             in_.shard.first,
             in_.shard.stride,
             in_.filter == nullptr ? nullptr : &filter_};
    ComputeTargets();
    VisitClasses();
    execution_.ForRanges(merging_workers_, in_.batch,
                         [this](int64_t begin, int64_t end, int worker) {
                           for (int64_t b = begin; b < end; ++b) Merge(b, worker);
                         });
    if (!keeper_) return;
    *out_.kept = keeper_->Finish(out_.logsumexp, in_.labels, in_.num_labels, in_.shard);
  }

 private:
  bool CopiesRows() const { return in_.weights.is_bfloat16 || in_.rounds; }

  void TakeMemory() {
    const int64_t block_rows = isa_.rows_of_block(in_.weights.width);
    hidden_ = execution_.Take<float>(lanes_ * in_.weights.width);
    target_ids_ = execution_.Filled<int32_t>(lanes_ * in_.num_labels, -1);
    target_keys_ = execution_.Filled<float>(lanes_ * in_.num_labels, kInfinity);
    max_ = execution_.Take<float>(num_chunks_ * lanes_);
    sum_ = execution_.Take<float>(num_chunks_ * lanes_);
    workers_ = execution_.Take<StreamedLogitsWorker>(num_workers_);
    for (int64_t w = 0; w < num_workers_; ++w) {
      workers_[w] = {
          0,
          0,
          execution_.Filled<int32_t>(lanes_ * in_.num_labels, 0),
          execution_.Take<ScoredClass>(in_.batch * in_.k),
          execution_.Filled<float>(lanes_, -kInfinity),
          in_.filter == nullptr ? nullptr : execution_.Filled<int64_t>(lanes_, 0),
          in_.filter == nullptr ? nullptr : execution_.Filled<uint32_t>(lanes_, ~0u),
          execution_.Filled<float>(lanes_, 0),
          CopiesRows() ? execution_.Take<float>(block_rows * in_.weights.width) : nullptr,
          execution_.Take<float>(block_rows),
          nullptr,
          keeper_ ? execution_.Take<uint32_t>(block_rows) : nullptr,
          nullptr};
    }
    target_workers_ = execution_.WorkersFor(in_.batch, in_.num_labels * (100 + in_.weights.width));
    rows_ = CopiesRows() ? execution_.Take<float>(target_workers_ * in_.weights.width) : nullptr;
    merging_workers_ = execution_.WorkersFor(
        in_.batch, 50 * num_chunks_ + 100 * num_workers_ * (in_.k + in_.num_labels));
    best_ = execution_.Take<ScoredClass>(merging_workers_ * num_workers_ * in_.k);
  }

  // Makes rows of the classes that are excluded.
  void SortExcluded() {
    const ClassFilter& of_classes = *in_.filter;
    const int64_t number = of_classes.num_excluded;
    int32_t* rows = execution_.Take<int32_t>(in_.batch * number);
    filter_ = {rows, number, of_classes.groups, of_classes.wanted};
    execution_.ForRanges(execution_.WorkersFor(in_.batch, 50 * number), in_.batch,
                         [&](int64_t begin, int64_t end, int) {
                           for (int64_t b = begin; b < end; ++b) {
                             int32_t* own = rows + b * number;
                             for (int64_t i = 0; i < number; ++i) {
                               const int64_t id = of_classes.excluded[b * number + i];
                               const int64_t row = in_.shard.RowOf(id);
                               own[i] = row < 0 ? INT32_MAX : static_cast<int32_t>(row);
                             }
                             std::sort(own, own + number);
                           }
                         });
  }

  // Transposes h into panels of examples, and labels with them.
  void PackPanels() {
    for (size_t p = 0; p < panels_.size(); ++p) {
      const int64_t first = p * isa_.panel_lanes;
      const int32_t examples = std::min<int64_t>(in_.batch - first, isa_.panel_lanes);
      const int32_t lanes = examples <= isa_.vector_lanes ? isa_.vector_lanes : isa_.panel_lanes;
      float* hidden = hidden_ + first * in_.weights.width;
      const int64_t labels_at = first * in_.num_labels;
      Panel& panel = panels_[p];
      panel.hidden = hidden;
      panel.hidden_rows = in_.hidden + first * in_.weights.width;
      panel.first_lane = first;
      panel.lanes = lanes;
      panel.examples = examples;
      const int64_t num_slots = PackLabels(first, lanes, examples);
      panel.num_slots = out_.target_ranks == nullptr ? 0 : num_slots;
      panel.target_keys = target_keys_ + labels_at;
      panel.target_ids = target_ids_ + labels_at;
      panel.keys = keeper_ ? keeper_->keys() + first : nullptr;
      isa_.pack_panel(panel, in_.weights.width, in_.rounds, hidden);
    }
  }

  // Returns how many slots the panel needs.
  int64_t PackLabels(int64_t first, int32_t lanes, int32_t examples) {
    int64_t num_slots = 0;
    int32_t* ids = target_ids_ + first * in_.num_labels;
    for (int32_t lane = 0; lane < examples; ++lane) {
      const int64_t* labels = in_.labels + (first + lane) * in_.num_labels;
      for (int64_t slot = 0; slot < in_.num_labels; ++slot) {
        if (labels[slot] < 0) continue;
        // Rows below this one win ties. A label that is a row here is that row.
        ids[slot * lanes + lane] = static_cast<int32_t>(in_.shard.RowsBelow(labels[slot]));
        num_slots = std::max(num_slots, slot + 1);
      }
    }
    return num_slots;
  }

  void ComputeTargets() {
    execution_.ForRanges(
        target_workers_, in_.batch, [this](int64_t begin, int64_t end, int worker) {
          for (int64_t b = begin; b < end; ++b) {
            ComputeTargetsOf(b, rows_ + (CopiesRows() ? worker * in_.weights.width : 0));
          }
        });
  }

  void ComputeTargetsOf(int64_t b, float* scratch) {
    const Panel& panel = panels_[b / isa_.panel_lanes];
    const int32_t lane = b % isa_.panel_lanes;
    float* keys = target_keys_ + panel.first_lane * in_.num_labels;
    for (int64_t slot = 0; slot < in_.num_labels; ++slot) {
      const int64_t at = b * in_.num_labels + slot;
      const int64_t row = in_.shard.RowOf(in_.labels[at]);
      float& logit = out_.target_logits[at];
      logit = row < 0 ? 0.0f : isa_.target_logit(pass_, panel, lane, row, scratch);
      if (IsRanked(at)) keys[slot * panel.lanes + lane] = OrderKey(ScoreOf(at));
    }
  }

  // Workers take chunks of classes in rising order until none is left.
  void VisitClasses() {
    std::atomic<int64_t> next_chunk{0};
    const auto work = [this, &next_chunk](int64_t first_worker, int64_t last_worker) {
      for (int64_t w = first_worker; w < last_worker; ++w) {
        for (int64_t c = next_chunk++; c < num_chunks_; c = next_chunk++) {
          VisitChunk(c, w);
        }
      }
    };
    execution_.parallel_for(num_workers_, work, chunk_ * (in_.weights.width + 10) * lanes_ / 10);
  }

  void VisitChunk(int64_t chunk, int64_t worker) {
    StreamedLogitsWorker& view = workers_[worker];
    const ChunkSums sums = {max_ + chunk * lanes_, sum_ + chunk * lanes_};
    if (keeper_) {
      view.bounds = keeper_->BoundsFor(worker);
      view.kept = keeper_->KeptBy(worker);
    }
    isa_.chunk(pass_, chunk * chunk_, std::min((chunk + 1) * chunk_, in_.weights.num_classes),
               &view, sums);
    if (keeper_) keeper_->AddChunk(sums.max, sums.sum);
  }

  void Merge(int64_t b, int worker) {
    out_.logsumexp[b] = MergeSums(b);
    if (out_.target_ranks != nullptr) MergeCounts(b);
    MergeHeaps(b, best_ + worker * num_workers_ * in_.k);
  }

  float MergeSums(int64_t lane) const {
    float max = -FLT_MAX;
    for (int64_t c = 0; c < num_chunks_; ++c) max = std::max(max, max_[c * lanes_ + lane]);
    const double reference = std::min(max, FLT_MAX);
    double sum = 0.0;
    for (int64_t c = 0; c < num_chunks_; ++c) {
      const double chunk_max = std::min(max_[c * lanes_ + lane], FLT_MAX);
      sum += sum_[c * lanes_ + lane] * std::exp(chunk_max - reference);
    }
    if (max == kInfinity && !std::isnan(sum)) return kInfinity;
    return static_cast<float>(reference + std::log(sum));
  }

  // Whether there is a score for a label.
  bool IsRanked(int64_t at) const {
    if (in_.labels[at] < 0) return false;
    return in_.target_scores != nullptr || in_.shard.RowOf(in_.labels[at]) >= 0;
  }

  float ScoreOf(int64_t at) const {
    return in_.target_scores != nullptr ? in_.target_scores[at] : out_.target_logits[at];
  }

  // Whether a label's own row was counted: its score was given, and is less than its logit.
  bool RanksAboveItself(int64_t at) const {
    return in_.shard.RowOf(in_.labels[at]) >= 0 &&
           OrderKey(out_.target_logits[at]) > OrderKey(ScoreOf(at));
  }

  void MergeCounts(int64_t b) const {
    const Panel& panel = panels_[b / isa_.panel_lanes];
    const int64_t at = panel.first_lane * in_.num_labels + b % isa_.panel_lanes;
    for (int64_t slot = 0; slot < in_.num_labels; ++slot) {
      int64_t rank = 0;
      for (int64_t w = 0; w < num_workers_; ++w) {
        rank += workers_[w].counts[at + slot * panel.lanes];
      }
      const int64_t i = b * in_.num_labels + slot;
      out_.target_ranks[i] = IsRanked(i) ? rank - RanksAboveItself(i) : -1;
    }
  }

  // `best` has room for the heaps of all workers.
  void MergeHeaps(int64_t b, ScoredClass* best) const {
    ScoredClass* end = best;
    for (int64_t w = 0; w < num_workers_; ++w) {
      const StreamedLogitsWorker& worker = workers_[w];
      const int64_t size =
          worker.sizes != nullptr ? worker.sizes[b] : std::min(in_.k, worker.classes_seen);
      end = std::copy_n(worker.heaps + b * in_.k, size, end);
    }
    const int64_t number = std::min<int64_t>(in_.k, end - best);
    std::partial_sort(best, best + number, end, RanksAbove);
    for (int64_t i = 0; i < in_.k; ++i) {
      out_.top_scores[b * in_.k + i] = i < number ? best[i].score : -kInfinity;
      out_.top_ids[b * in_.k + i] = i < number ? in_.shard.ClassOf(best[i].id) : -1;
    }
  }

  const StreamedLogitsInputs& in_;
  const StreamedLogitsIsa& isa_;
  const Execution& execution_;
  const StreamedLogitsOutputs& out_;
  int64_t lanes_, chunk_, num_chunks_, num_workers_;
  int target_workers_, merging_workers_;
  std::vector<Panel> panels_;
  float* hidden_;  // by panel: [D, lanes]
  int32_t* target_ids_;
  float* target_keys_;
  float *max_, *sum_;              // [num_chunks, lanes]
  StreamedLogitsWorker* workers_;  // [num_workers]
  float* rows_;                    // [target_workers, D]
  ScoredClass* best_;              // [merging_workers, num_workers, k]
  std::optional<LogitKeeper> keeper_;
  RowFilter filter_;  // where there is one
  StreamedLogitsPass pass_;
};

}  // namespace

void StreamedLogits(const StreamedLogitsInputs& inputs, const Execution& execution,
                    const StreamedLogitsOutputs& outputs) {
  const Workspace::Scope scope(execution.workspace);
  StreamedLogitsRun(inputs, execution, outputs).Run();
}

}  // namespace tfx::core
