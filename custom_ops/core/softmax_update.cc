// SPDX-License-Identifier: Apache-2.0
//
// The classes are cut into shares, and these into blocks of rows. The logits of a block are
// computed again, turned into gradients, multiplied by h and W, and the rows updated, all while the
// block is in the caches. Each share has a separate sum for dL/dh, so that the result does not
// depend on which worker takes which share.

#include "core/softmax_update.h"

#include <algorithm>
#include <vector>

#include "core/radix_sort.h"
#include "core/softmax_update_isa.h"

namespace tfx::core {
namespace {

constexpr int64_t kMostOfSums = 1 << 23;  // floats
constexpr int64_t kFewestShares = 8;
constexpr int64_t kMostShares = 64;
constexpr int64_t kExamplesOfTask = 16;

class SoftmaxStep {
 public:
  SoftmaxStep(const LayerWeights& weights, const LayerRows& rows, const SoftmaxBatch& batch,
              const RowUpdater* updater, const Execution& execution, float* hidden_gradient)
      : weights_(weights),
        rows_(rows),
        batch_(batch),
        updater_(updater),
        execution_(execution),
        isa_(TFX_OF_BFLOAT16_SET(kSoftmaxUpdate, execution.set)),
        hidden_gradient_(hidden_gradient),
        width_(weights.width),
        padded_width_(isa_.padded_width(width_)),
        num_panels_(BlocksOf(batch.size, isa_.panel_lanes)),
        block_(isa_.rows_of_block(width_)),
        num_blocks_(BlocksOf(weights.num_classes, block_)),
        sum_size_(isa_.padded_lanes(num_panels_) * padded_width_) {
    const int64_t fitting = kMostOfSums / std::max<int64_t>(sum_size_, 1);
    num_shares_ = std::min(std::clamp(fitting, kFewestShares, kMostShares), num_blocks_);
  }

  void Run() {
    Workspace::Scope scope(execution_.workspace);
    TakeMemory();
    const auto pack = [this](int64_t task, int) { PackPanel(task); };
    const auto prepare = [this](int64_t, int) { PrepareLanesAndTerms(); };
    const auto share = [this](int64_t task, int worker) { VisitShare(task, worker); };
    const auto sum = [this](int64_t begin, int64_t end, int) { SumHiddenGradient(begin, end); };
    execution_.Run({{"panels", {{1, prepare}, {num_panels_, pack}}},
                    {"classes", {{num_shares_, share}}},
                    {"hidden gradient", {InBlocks(batch_.size, kExamplesOfTask, sum)}}});
  }

 private:
  void TakeMemory() {
    const int64_t lanes = num_panels_ * isa_.panel_lanes, workers = execution_.num_workers;
    panels_.resize(num_panels_);
    hidden_ = execution_.Take<float>(lanes * width_);
    columns_ = execution_.Take<float>(lanes * padded_width_);
    logsumexp_ = execution_.Take<float>(lanes);
    scales_ = execution_.Take<float>(lanes);
    offsets_ = execution_.Take<float>(lanes);
    terms_ = execution_.Take<LabelTerm>(2 * batch_.size * batch_.num_labels);
    sums_ = execution_.Take<float>(num_shares_ * sum_size_);
    scratch_size_ = isa_.scratch_size(width_);
    scratch_ = execution_.Take<float>(workers * scratch_size_);
    kernel_gradients_ = execution_.Take<float>(workers * block_ * padded_width_);
    bias_gradients_ = execution_.Take<float>(workers * block_);
  }

  void PackPanel(int64_t p) {
    const int64_t first = p * isa_.panel_lanes;
    const int32_t lanes = isa_.panel_lanes;
    float* hidden = hidden_ + first * width_;
    panels_[p] = {hidden, batch_.hidden + first * width_, first, lanes,
                  static_cast<int32_t>(std::min<int64_t>(batch_.size - first, lanes))};
    isa_.pack_panel(panels_[p], width_, batch_.rounds, hidden);
  }

  void PrepareLanesAndTerms() {
    const int64_t lanes = num_panels_ * isa_.panel_lanes;
    isa_.pack_columns(batch_.hidden, batch_.size, width_, batch_.rounds, columns_);
    std::fill_n(logsumexp_, lanes, 0.0f);
    std::fill_n(scales_, lanes, 0.0f);
    std::fill_n(offsets_, lanes, 0.0f);
    std::copy_n(batch_.logsumexp, batch_.size, logsumexp_);
    std::copy_n(batch_.log_z_gradient, batch_.size, scales_);
    if (batch_.mean_gradient != nullptr) {
      const auto num_classes = static_cast<float>(weights_.num_classes);
      for (int64_t i = 0; i < batch_.size; ++i) offsets_[i] = batch_.mean_gradient[i] / num_classes;
    }
    num_terms_ = 0;
    for (int64_t at = 0; at < batch_.size * batch_.num_labels; ++at) {
      if (batch_.labels[at] < 0) continue;
      terms_[num_terms_++] = {static_cast<uint32_t>(batch_.labels[at]),
                              static_cast<uint32_t>(at / batch_.num_labels),
                              batch_.target_gradient[at]};
    }
    SortByClass(terms_, terms_ + num_terms_, num_terms_, BitsOfClasses(weights_.num_classes));
  }

  void VisitShare(int64_t share, int worker) {
    const SoftmaxUpdatePass pass = {
        {weights_.kernel, weights_.bias, weights_.is_bfloat16, batch_.rounds, width_},
        panels_.data(),
        num_panels_,
        columns_,
        logsumexp_,
        scales_,
        offsets_};
    float* kernel = kernel_gradients_ + worker * block_ * padded_width_;
    const SoftmaxBlockGradients gradients = {updater_ == nullptr ? nullptr : kernel,
                                             bias_gradients_ + worker * block_,
                                             sums_ + share * sum_size_};
    std::fill_n(gradients.hidden, sum_size_, 0.0f);
    const auto is_before = [](const LabelTerm& term, int64_t c) { return term.class_id < c; };
    const LabelTerm* const terms_end = terms_ + num_terms_;
    const int64_t begin = num_blocks_ * share / num_shares_ * block_;
    const int64_t end =
        std::min(num_blocks_ * (share + 1) / num_shares_ * block_, weights_.num_classes);
    const LabelTerm* term = std::lower_bound<const LabelTerm*>(terms_, terms_end, begin, is_before);
    for (int64_t first = begin; first < end; first += block_) {
      const int64_t num_rows = std::min(block_, end - first);
      const LabelTerm* next = std::lower_bound(term, terms_end, first + num_rows, is_before);
      isa_.block(pass, first, num_rows, term, next, scratch_ + worker * scratch_size_, gradients);
      if (updater_ != nullptr) UpdateRows(first, num_rows, gradients);
      term = next;
    }
  }

  void UpdateRows(int64_t first, int64_t num_rows, const SoftmaxBlockGradients& gradients) const {
    for (int64_t i = 0; i < num_rows; ++i) {
      updater_->Update(rows_.kernel, first + i, gradients.kernel + i * padded_width_);
      if (rows_.bias.weights == nullptr) continue;
      updater_->Update(rows_.bias, first + i, gradients.bias + i);
    }
  }

  void SumHiddenGradient(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* to = hidden_gradient_ + i * width_;
      std::copy_n(sums_ + i * padded_width_, width_, to);
      for (int64_t share = 1; share < num_shares_; ++share) {
        execution_.dense.add(1, sums_ + share * sum_size_ + i * padded_width_, width_, to);
      }
    }
  }

  const LayerWeights& weights_;
  const LayerRows& rows_;
  const SoftmaxBatch& batch_;
  const RowUpdater* updater_;
  const Execution& execution_;
  const SoftmaxUpdateIsa& isa_;
  float* hidden_gradient_;
  const int64_t width_, padded_width_, num_panels_, block_, num_blocks_;
  const int64_t sum_size_;  // floats of a share's sum for dL/dh
  int64_t num_shares_ = 0, num_terms_ = 0, scratch_size_ = 0;
  std::vector<HiddenPanel> panels_;
  float* hidden_ = nullptr;            // by panel: [D, lanes]
  float* columns_ = nullptr;           // h as a right factor
  float* logsumexp_ = nullptr;         // by lane
  float* scales_ = nullptr;            // by lane
  float* offsets_ = nullptr;           // by lane
  LabelTerm* terms_ = nullptr;         // by class; and as many to sort them
  float* sums_ = nullptr;              // a share: for dL/dh
  float* scratch_ = nullptr;           // a worker: of the instruction set's part
  float* kernel_gradients_ = nullptr;  // a worker: [block, padded width]
  float* bias_gradients_ = nullptr;    // a worker: [block]
};

}  // namespace

void SoftmaxUpdate(const LayerWeights& weights, const LayerRows& rows, const SoftmaxBatch& batch,
                   const RowUpdater* updater, const Execution& execution, float* hidden_gradient) {
  SoftmaxStep(weights, rows, batch, updater, execution, hidden_gradient).Run();
}

}  // namespace tfx::core
