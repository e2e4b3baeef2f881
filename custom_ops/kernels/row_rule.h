// SPDX-License-Identifier: Apache-2.0
//
// What a row-sparse optimizer does, and the variables that it does it to, as ops get them.

#ifndef TFX_LARGEOUT_KERNELS_ROW_RULE_H_
#define TFX_LARGEOUT_KERNELS_ROW_RULE_H_

#include <memory>
#include <string>

#include "core/adam_correction.h"
#include "core/gpu/row_rule.h"
#include "core/row_update.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// The error for a learning rate that is out of range.
absl::Status RateError(double weight_decay, float learning_rate);

// A rule: the method of an op, with the numbers that it got for this step. Copies are cheap.
class RowRule {
 public:
  // `method` is "sgd", "adagrad" or "adam"; `numbers` are weight_decay, clip_norm and the method's
  // hyperparameters, and maybe 1, for rows of norm 1. Refuses numbers and rates out of range. Of a
  // rate that is on a device, for OnGpu, only the shape is looked at.
  absl::Status Set(const std::string& method, const tensorflow::Tensor& numbers,
                   const tensorflow::Tensor& learning_rate, bool rate_is_on_host = true);

  int NumSlots() const;

  // Refuses slots, variables [first_slot, first_slot + num_slots), that are not those of a weight.
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
  double weight_decay_, beta_1_, beta_2_;
  core::RowStep step_;
  std::shared_ptr<const core::AdamCorrection> correction_;  // of Adam alone
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_ROW_RULE_H_
