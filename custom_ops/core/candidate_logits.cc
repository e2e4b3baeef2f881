// SPDX-License-Identifier: Apache-2.0

#include "core/candidate_logits.h"

#include <algorithm>

#include "core/class_buckets.h"
#include "core/prefetch.h"
#include "core/radix_sort.h"

namespace tfx::core {
namespace {

constexpr int64_t kExamplesOfTask = 16;
constexpr int64_t kMostPanelsOfTask = 4;
constexpr int64_t kTilesOfProduct = 2;
constexpr uint32_t kMarks = 1 << 12;
constexpr int64_t kFewEntries = 8192;  // labels and own candidates of all examples
constexpr int64_t kPairsOfTask = 4096;

class CandidateLogitsPass {
 public:
  CandidateLogitsPass(const LayerWeights& weights, const CandidateBatch& batch,
                      const Execution& execution, const CandidateLogitsOutputs& outputs)
      : weights_(weights), batch_(batch), execution_(execution), out_(outputs) {}

  void Run() {
    Workspace::Scope scope(execution_.workspace);
    if (batch_.own) {
      RunOwn();
    } else {
      RunShared();
    }
  }

 private:
  void RunOwn() {
    marks_ = execution_.Filled<uint8_t>(execution_.num_workers * kMarks, 0);
    if (batch_.size * (batch_.num_labels + batch_.num_candidates) < kFewEntries) {
      RunOwnByExample();
    } else {
      RunOwnByClass();
    }
  }

  void RunOwnByExample() {
    const auto logits = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) {
        TrueLogits(i);
        const int64_t at = i * batch_.num_candidates;
        LogitsAt(i, batch_.candidates + at, batch_.num_candidates, out_.candidate_logits + at);
        OwnHits(i, worker);
      }
    };
    execution_.Run({{"own logits", {InBlocks(batch_.size, kExamplesOfTask, logits)}}});
  }

  // Bucket by bucket of classes, so that a row of W comes from memory once for all examples.
  void RunOwnByClass() {
    ClassBuckets buckets(batch_, weights_.num_classes, execution_);
    const int64_t most = batch_.size * (batch_.num_labels + batch_.num_candidates);
    auto* pairs = execution_.Take<ClassExample>(most);
    auto* logits = execution_.Take<float>(most);
    const auto count = [&](int64_t chunk, int) { buckets.Count(chunk); };
    const auto place = [&](int64_t, int) { buckets.Place(); };
    const auto deal = [&](int64_t chunk, int) {
      buckets.Deal(chunk, batch_.labels, batch_.candidates,
                   [&](int64_t at, int64_t c, int64_t i, int64_t) {
                     pairs[at] = {static_cast<uint32_t>(c), static_cast<uint32_t>(i)};
                   });
    };
    const auto products = [&](int64_t first, int64_t last, int) {
      PairLogits(buckets, pairs, first, last, logits);
    };
    const auto take_back = [&](int64_t chunk, int worker) {
      buckets.TakeBack(chunk, logits, out_.true_logits, out_.candidate_logits);
      buckets.ForChunk(chunk, [&](int64_t i) { OwnHits(i, worker); });
    };
    execution_.Run({{"count classes", {{buckets.num_chunks(), count}}},
                    {"place classes", {{1, place}}},
                    {"deal out classes", {{buckets.num_chunks(), deal}}},
                    {"own logits", {InBlocks(most, kPairsOfTask, products)}},
                    {"take back logits", {{buckets.num_chunks(), take_back}}}});
  }

  // The logits of the pairs [first, last), without padding.
  void PairLogits(const ClassBuckets& buckets, const ClassExample* pairs, int64_t first,
                  int64_t last, float* logits) const {
    last = std::min(last, buckets.Begin(buckets.size()));
    if (first >= last) return;
    for (int64_t bucket = buckets.Of(first); first < last; ++bucket) {
      if (first == buckets.Begin(bucket)) buckets.ReadRows(bucket, weights_);
      const int64_t end = std::min(buckets.Begin(bucket + 1), last);
      execution_.rows.pair_logits(weights_.kernel, weights_.bias, weights_.is_bfloat16,
                                  weights_.width, pairs + first, end - first, batch_.hidden,
                                  logits + first);
      first = end;
    }
  }

  void RunShared() {
    const int64_t panel = execution_.dense.panel_width;
    const int64_t num_panels = BlocksOf(batch_.num_candidates, panel);
    candidates_of_task_ = panel * std::clamp<int64_t>(num_panels / (4 * execution_.num_workers), 1,
                                                      kMostPanelsOfTask);
    scratch_size_ = candidates_of_task_ * (2 * weights_.width + 1);
    scratch_ = execution_.Take<float>(execution_.num_workers * scratch_size_);
    sorted_ = execution_.Take<ClassPlace>(batch_.num_candidates);
    spare_ = execution_.Take<ClassPlace>(batch_.num_candidates);
    const auto sort = [&](int64_t, int) { SortCandidates(); };
    const auto products = [&](int64_t begin, int64_t end, int worker) {
      PanelLogits(begin, end - begin, worker);
    };
    const auto examples = [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        TrueLogits(i);
        SharedHits(i);
      }
    };
    execution_.Run({{"candidate logits",
                     {{1, sort}, InBlocks(batch_.num_candidates, candidates_of_task_, products)}},
                    {"true logits and hits", {InBlocks(batch_.size, kExamplesOfTask, examples)}}});
  }

  void LogitsAt(int64_t i, const int64_t* ids, int64_t n, float* out) const {
    execution_.rows.logits(weights_.kernel, weights_.bias, weights_.is_bfloat16, weights_.width,
                           ids, n, batch_.hidden + i * weights_.width, out);
  }

  void TrueLogits(int64_t i) const {
    const int64_t at = i * batch_.num_labels;
    LogitsAt(i, batch_.labels + at, batch_.num_labels, out_.true_logits + at);
  }

  void OwnHits(int64_t i, int worker) const {
    uint8_t* marks = marks_ + worker * kMarks;
    const int64_t* labels = batch_.labels + i * batch_.num_labels;
    const int64_t* end = labels + batch_.num_labels;
    const int64_t* candidates = batch_.candidates + i * batch_.num_candidates;
    bool* hits = out_.hits + i * batch_.num_candidates;
    for (const int64_t* y = labels; y < end; ++y) {
      if (*y >= 0) marks[*y & (kMarks - 1)] = 1;
    }
    for (int64_t s = 0; s < batch_.num_candidates; ++s) {
      const int64_t c = candidates[s];
      hits[s] = marks[c & (kMarks - 1)] != 0 && c >= 0 && std::find(labels, end, c) < end;
    }
    for (const int64_t* y = labels; y < end; ++y) marks[*y & (kMarks - 1)] = 0;
  }

  void SortCandidates() {
    num_sorted_ = 0;
    for (int64_t s = 0; s < batch_.num_candidates; ++s) {
      if (batch_.candidates[s] < 0) continue;
      sorted_[num_sorted_++] = {static_cast<uint32_t>(batch_.candidates[s]),
                                static_cast<uint32_t>(s)};
    }
    SortByClass(sorted_, spare_, num_sorted_, BitsOfClasses(weights_.num_classes));
  }

  void SharedHits(int64_t i) const {
    bool* hits = out_.hits + i * batch_.num_candidates;
    std::fill_n(hits, batch_.num_candidates, false);
    const auto is_before = [](const ClassPlace& place, int64_t c) { return place.class_id < c; };
    const ClassPlace *begin = sorted_, *end = begin + num_sorted_;
    for (int64_t k = 0; k < batch_.num_labels; ++k) {
      const int64_t label = batch_.labels[i * batch_.num_labels + k];
      if (label < 0) continue;
      const ClassPlace* found = std::lower_bound(begin, end, label, is_before);
      for (; found < end && found->class_id == label; ++found) hits[found->place] = true;
    }
  }

  // Rows [first, first + n) of the candidates, as floats; 0 where there is none. Adds their biases.
  void Gather(int64_t first, int64_t n, float* rows, float* biases) const {
    const int64_t width = weights_.width;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t c = batch_.candidates[first + j];
      if (c < 0) continue;
      PrefetchBytes(weights_.Row(c), weights_.BytesOfRow());
    }
    for (int64_t j = 0; j < n; ++j) {
      const int64_t c = batch_.candidates[first + j];
      float* row = rows + j * width;
      biases[j] = c < 0 || weights_.bias == nullptr ? 0 : Bias(c);
      if (c < 0) {
        std::fill_n(row, width, 0.0f);
      } else if (weights_.is_bfloat16) {
        execution_.rows.widen(static_cast<const uint16_t*>(weights_.Row(c)), width, row);
      } else {
        std::copy_n(static_cast<const float*>(weights_.Row(c)), width, row);
      }
    }
  }

  float Bias(int64_t c) const {
    if (!weights_.is_bfloat16) return static_cast<const float*>(weights_.bias)[c];
    float bias;
    execution_.rows.widen(static_cast<const uint16_t*>(weights_.bias) + c, 1, &bias);
    return bias;
  }

  // The logits of all examples for n candidates, some panels. Logits of a few examples at a time,
  // so that a page of memory is written once, not once a panel.
  void PanelLogits(int64_t first, int64_t n, int worker) const {
    const int64_t panel_width = execution_.dense.panel_width, width = weights_.width;
    const int64_t num_candidates = batch_.num_candidates;
    float* rows = scratch_ + worker * scratch_size_;
    float* panels = rows + candidates_of_task_ * width;
    float* biases = panels + candidates_of_task_ * width;
    Gather(first, n, rows, biases);
    execution_.dense.pack_transposed(rows, width, width, n, 0, BlocksOf(n, panel_width), panels);
    float* out = out_.candidate_logits + first;
    const Product<float> product = {batch_.hidden, width,          1, panels, width, n,
                                    out,           num_candidates, 1, 1};
    const int64_t examples = kTilesOfProduct * execution_.dense.tile_rows;
    for (int64_t begin = 0; begin < batch_.size; begin += examples) {
      const int64_t end = std::min(begin + examples, batch_.size);
      for (int64_t i = begin; i < end; ++i) std::copy_n(biases, n, out + i * num_candidates);
      execution_.dense.multiply(product, begin, end, false);
    }
  }

  const LayerWeights& weights_;
  const CandidateBatch& batch_;
  const Execution& execution_;
  const CandidateLogitsOutputs& out_;
  int64_t candidates_of_task_ = 0, scratch_size_ = 0, num_sorted_ = 0;
  uint8_t* marks_ = nullptr;      // [workers, kMarks]: 0 between examples
  float* scratch_ = nullptr;      // a worker: rows of candidates, the same in panels, and biases
  ClassPlace* sorted_ = nullptr;  // the candidates that are there, by class
  ClassPlace* spare_ = nullptr;
};

}  // namespace

void CandidateLogits(const LayerWeights& weights, const CandidateBatch& batch,
                     const Execution& execution, const CandidateLogitsOutputs& outputs) {
  CandidateLogitsPass(weights, batch, execution, outputs).Run();
}

}  // namespace tfx::core
