// SPDX-License-Identifier: Apache-2.0
//
// The step of a row-sparse optimizer and its variables, as inputs of ops.

#ifndef TFX_LARGEOUT_KERNELS_ROW_RULE_H_
#define TFX_LARGEOUT_KERNELS_ROW_RULE_H_

#include <memory>
#include <string>
#include <vector>

#include "core/adam_correction.h"
#include "core/gpu/row_rule.h"
#include "core/row_update.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// The error for a learning rate that is out of range.
absl::Status RateError(double weight_decay, float learning_rate);

// A rule: the method of an op, with the numbers for this step. Copies are cheap.
class RowRule {
 public:
  // `method` is "sgd", "adagrad" or "adam"; `numbers` are weight_decay, clip_norm and the method's
  // hyperparameters, and optionally the options of TfxRowUpdate, which OnGpu does not support.
  // Returns an error if numbers or rates are out of range. For OnGpu, with the rate on the device,
  // only its shape is checked.
  absl::Status Set(const std::string& method, const tensorflow::Tensor& numbers,
                   const tensorflow::Tensor& learning_rate, bool rate_is_on_host = true);

  int NumSlots() const { return static_cast<int>(Slots().size()); }

  // Returns an error if variables [first_slot, first_slot + num_slots) are not the slots of a
  // weight.
  absl::Status CheckSlots(const LockedVariables& variables, int weight, int first_slot,
                          int num_slots) const;

  // REQUIRES: CheckSlots succeeded. It is valid until a variable gets another buffer.
  core::WeightRows Rows(const LockedVariables& variables, int weight, int first_slot) const;

  core::RowUpdater Updater(const core::RowKernels& kernels) const {
    return core::RowUpdater(step_, correction_.get(), kernels);
  }

  core::gpu::RowRule OnGpu(const float* learning_rate) const {
    return {step_, learning_rate, weight_decay_, beta_1_, beta_2_};
  }

 private:
  // The kind of a slot. kMoment: a number per weight, maybe in bfloat16; kOfRow: a number per row.
  enum class Slot { kSum, kMoment, kOfRow, kAge, kError };

  std::vector<Slot> Slots() const;

  // Returns an error if options in numbers [first, first + kNumOptions) are out of range.
  absl::Status SetOptions(const double* numbers);

  double weight_decay_, beta_1_, beta_2_;
  uint64_t key_ = 0;      // of the random bits of this step
  int64_t variable_ = 0;  // of these weights; for b, 1 more
  core::ClassShard shard_ = {0, 1, 0};
  core::RowStep step_;
  std::shared_ptr<const core::AdamCorrection> correction_;  // only for Adam
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_ROW_RULE_H_
