// SPDX-License-Identifier: Apache-2.0
//
// The rows are cut into shares with a sum each, so that the result does not depend on which worker
// takes which share. Rows that are short are summed several side by side, as one line.

#include "core/mean_of_rows.h"

#include <algorithm>

namespace tfx::core {
namespace {

constexpr int64_t kMostShares = 64;
constexpr int64_t kNumbersOfShare = 1 << 16;  // at least, if there is more than one
constexpr int64_t kNumbersOfLine = 1 << 10;   // about
constexpr int64_t kLinesOfSum = 16;

class Mean {
 public:
  Mean(const void* rows, bool is_bfloat16, int64_t num_rows, int64_t width,
       const Execution& execution, float* mean)
      : rows_(rows),
        is_bfloat16_(is_bfloat16),
        num_rows_(num_rows),
        width_(width),
        execution_(execution),
        line_(std::max(kNumbersOfLine / std::max<int64_t>(width, 1), int64_t{1}) * width),
        num_shares_(std::clamp(num_rows * width / kNumbersOfShare, int64_t{1}, kMostShares)),
        mean_(mean) {}

  void Run() {
    const Workspace::Scope scope(execution_.workspace);
    lines_ = execution_.Take<float>(2 * line_ * execution_.num_workers);
    sums_ = execution_.Take<double>(num_shares_ * width_);
    const auto sum = [this](int64_t share, int worker) { SumShare(share, worker); };
    const auto divide = [this](int64_t, int) { Divide(); };
    execution_.Run({{"rows", {{num_shares_, sum}}}, {"mean", {{1, divide}}}});
  }

 private:
  void SumShare(int64_t share, int worker) const {
    float* const line = lines_ + 2 * line_ * worker;
    double* const sums = sums_ + share * width_;
    std::fill_n(sums, width_, 0.0);
    const int64_t end = num_rows_ * (share + 1) / num_shares_ * width_;
    for (int64_t at = num_rows_ * share / num_shares_ * width_; at < end;) {
      std::fill_n(line, line_, 0.0f);
      for (int64_t i = 0; i < kLinesOfSum && at < end; ++i) {
        const int64_t n = std::min(line_, end - at);
        execution_.dense.add(1, Numbers(at, n, line + line_), n, line);
        at += n;
      }
      for (int64_t i = 0; i < line_; i += width_) {
        for (int64_t j = 0; j < width_; ++j) sums[j] += line[i + j];
      }
    }
  }

  const float* Numbers(int64_t at, int64_t n, float* room) const {
    if (!is_bfloat16_) return static_cast<const float*>(rows_) + at;
    execution_.rows.widen(static_cast<const uint16_t*>(rows_) + at, n, room);
    return room;
  }

  void Divide() const {
    for (int64_t j = 0; j < width_; ++j) {
      double sum = 0;
      for (int64_t share = 0; share < num_shares_; ++share) sum += sums_[share * width_ + j];
      mean_[j] = static_cast<float>(sum / static_cast<double>(num_rows_));
    }
  }

  const void* rows_;
  const bool is_bfloat16_;
  const int64_t num_rows_, width_;
  const Execution& execution_;
  const int64_t line_;  // numbers of a line
  const int64_t num_shares_;
  float* mean_;
  float* lines_ = nullptr;  // a worker: a sum of lines, and room for one
  double* sums_ = nullptr;  // a share: [width]
};

}  // namespace

void MeanOfRows(const void* rows, bool is_bfloat16, int64_t num_rows, int64_t width,
                const Execution& execution, float* mean) {
  Mean(rows, is_bfloat16, num_rows, width, execution, mean).Run();
}

}  // namespace tfx::core
