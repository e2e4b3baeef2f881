// SPDX-License-Identifier: Apache-2.0
//
// With candidates that all examples share, both gradients are dense products:
// dL/dH = G W_S and dL/dW_S = G^T H, with the rows W_S of the candidates and G [N, S].

#include <algorithm>

#include "core/candidate_update.h"
#include "core/prefetch.h"
#include "core/radix_sort.h"

namespace tfx::core {
namespace {

constexpr int64_t kRowsOfTask = 32;
constexpr int64_t kCandidatesOfTask = 48;  // a multiple of most tiles
constexpr int64_t kMostExamplesOfTask = 96;
constexpr int64_t kRowsAhead = 8;

int64_t Tasks(int64_t n, int64_t size) { return (n + size - 1) / size; }

class SharedCandidateStep {
 public:
  SharedCandidateStep(const LayerWeights& weights, const LayerRows& rows,
                      const CandidateBatch& batch, const CandidateGradients& gradients,
                      const RowUpdater* updater, const Execution& execution, float* hidden_gradient)
      : weights_(weights),
        rows_(rows),
        batch_(batch),
        gradients_(gradients),
        updater_(updater),
        execution_(execution),
        hidden_gradient_(hidden_gradient),
        width_(weights.width),
        num_candidates_(batch.num_candidates),
        num_labels_total_(batch.size * batch.num_labels) {}

  void Run() {
    Workspace::Scope scope(execution_.workspace);
    TakeMemory();
    const auto sort = [this](int64_t, int) { SortClasses(); };
    const auto pack_rows = [this](int64_t task, int worker) { PackRows(task, worker); };
    const auto pack_hidden = [this](int64_t task, int) { PackHidden(task); };
    const auto hidden = [this](int64_t task, int worker) { HiddenGradient(task, worker); };
    const auto kernel = [this](int64_t task, int worker) { KernelGradient(task, worker); };
    const auto update = [this](int64_t task, int worker) { UpdateClasses(task, worker); };
    const int64_t if_updating = updater_ == nullptr ? 0 : 1;
    execution_.Run(
        {{"classes and panels",
          {{if_updating, sort},
           {Tasks(num_candidates_, kRowsOfTask), pack_rows},
           {if_updating * Tasks(batch_.size, kRowsOfTask), pack_hidden}}},
         {"gradients",
          {{Tasks(batch_.size, examples_of_task_), hidden},
           {if_updating * Tasks(num_candidates_, kCandidatesOfTask), kernel}}},
         {"rows",
          {{if_updating * Tasks(num_labels_total_ + num_candidates_, kRowsOfTask), update}}}});
  }

 private:
  template <typename T>
  T* Take(int64_t n) {
    return execution_.workspace.Take<T>(n);
  }

  void TakeMemory() {
    const int64_t panel = execution_.dense.panel_width, tile = execution_.dense.tile_rows;
    const int64_t padded_width = Tasks(width_, panel) * panel, workers = execution_.num_workers;
    examples_of_task_ =
        std::clamp(Tasks(Tasks(batch_.size, 16), tile) * tile, tile, kMostExamplesOfTask);
    has_padding_ = std::any_of(batch_.candidates, batch_.candidates + num_candidates_,
                               [](int64_t c) { return c < 0; });
    row_panels_ = Take<float>(num_candidates_ * padded_width);
    row_scratch_ = Take<float>(workers * width_);
    if (has_padding_) masked_ = Take<float>(workers * examples_of_task_ * num_candidates_);
    if (updater_ == nullptr) return;
    hidden_panels_ = Take<float>(batch_.size * padded_width);
    columns_ = Take<float>(workers * batch_.size * kCandidatesOfTask);
    kernel_gradient_ = Take<float>(num_candidates_ * width_);
    bias_gradient_ = Take<float>(num_candidates_);
    sorted_ = Take<ClassPlace>(num_labels_total_ + num_candidates_);
    spare_ = Take<ClassPlace>(num_labels_total_ + num_candidates_);
    first_places_ = Take<int64_t>(num_labels_total_ + num_candidates_ + 1);
  }

  // Sets `sorted_` to all places where a class stands, labels first, and `first_places_` to where
  // each class begins.
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

  void PackRows(int64_t task, int worker) {
    const int64_t begin = task * kRowsOfTask;
    const int64_t end = std::min(begin + kRowsOfTask, num_candidates_);
    float* scratch = row_scratch_ + worker * width_;
    for (int64_t s = begin; s < end; ++s) {
      const int64_t c = batch_.candidates[s];
      if (c >= 0) PrefetchBytes(weights_.Row(c), width_ * (weights_.is_bfloat16 ? 2 : 4));
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

  void PackHidden(int64_t task) {
    const int64_t begin = task * kRowsOfTask, end = std::min(begin + kRowsOfTask, batch_.size);
    execution_.dense.pack(batch_.hidden, width_, batch_.size, width_, begin, end, hidden_panels_);
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

  void HiddenGradient(int64_t task, int worker) {
    const int64_t begin = task * examples_of_task_;
    const int64_t n = std::min(examples_of_task_, batch_.size - begin);
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

  // dL/dW and dL/db of some candidates. Columns of G are copied first: they are far apart.
  void KernelGradient(int64_t task, int worker) {
    const int64_t begin = task * kCandidatesOfTask;
    const int64_t n = std::min(kCandidatesOfTask, num_candidates_ - begin);
    float* columns = columns_ + worker * batch_.size * kCandidatesOfTask;
    float sums[kCandidatesOfTask] = {};
    for (int64_t i = 0; i < batch_.size; ++i) {
      float* to = columns + i * kCandidatesOfTask;
      CopyGradient(i, begin, n, to);
      execution_.rows.add(to, n, sums);
    }
    std::copy_n(sums, n, bias_gradient_ + begin);
    execution_.dense.multiply({columns, 1, kCandidatesOfTask, hidden_panels_, batch_.size, width_,
                               kernel_gradient_ + begin * width_, width_, 1, 0},
                              0, n, false);
  }

  void UpdateClasses(int64_t task, int worker) {
    const int64_t begin = task * kRowsOfTask, end = std::min(begin + kRowsOfTask, num_classes_);
    for (int64_t u = begin; u < std::min(begin + kRowsAhead, end); ++u) Prefetch(u);
    for (int64_t u = begin; u < end; ++u) {
      if (u + kRowsAhead < end) Prefetch(u + kRowsAhead);
      UpdateClass(u, worker);
    }
  }

  void Prefetch(int64_t u) const {
    const int64_t c = sorted_[first_places_[u]].class_id;
    PrefetchRow(rows_.kernel, c);
    if (rows_.bias.weights != nullptr) PrefetchRow(rows_.bias, c);
  }

  void UpdateClass(int64_t u, int worker) {
    const int64_t begin = first_places_[u], end = first_places_[u + 1];
    const int64_t only = static_cast<int64_t>(sorted_[begin].place) - num_labels_total_;
    const float* gradient;
    float bias_gradient = 0;
    if (end - begin == 1 && only >= 0) {
      gradient = kernel_gradient_ + only * width_;
      bias_gradient = bias_gradient_[only];
    } else {
      float* sum = row_scratch_ + worker * width_;
      std::fill_n(sum, width_, 0.0f);
      for (int64_t i = begin; i < end; ++i) AddPlace(sorted_[i].place, sum, &bias_gradient);
      gradient = sum;
    }
    const int64_t c = sorted_[begin].class_id;
    updater_->Update(rows_.kernel, c, gradient);
    if (rows_.bias.weights != nullptr) updater_->Update(rows_.bias, c, &bias_gradient);
  }

  void AddPlace(int64_t place, float* sum, float* bias_sum) const {
    if (place < num_labels_total_) {
      const float g = gradients_.labels[place];
      const float* h = batch_.hidden + place / batch_.num_labels * width_;
      execution_.dense.add(g, h, width_, sum);
      *bias_sum += g;
    } else {
      const int64_t s = place - num_labels_total_;
      execution_.rows.add(kernel_gradient_ + s * width_, width_, sum);
      *bias_sum += bias_gradient_[s];
    }
  }

  const LayerWeights& weights_;
  const LayerRows& rows_;
  const CandidateBatch& batch_;
  const CandidateGradients& gradients_;
  const RowUpdater* updater_;
  const Execution& execution_;
  float* hidden_gradient_;
  const int64_t width_, num_candidates_, num_labels_total_;
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

}  // namespace

void SharedCandidateUpdate(const LayerWeights& weights, const LayerRows& rows,
                           const CandidateBatch& batch, const CandidateGradients& gradients,
                           const RowUpdater* updater, const Execution& execution,
                           float* hidden_gradient) {
  SharedCandidateStep(weights, rows, batch, gradients, updater, execution, hidden_gradient).Run();
}

}  // namespace tfx::core
