// SPDX-License-Identifier: Apache-2.0
//
// What ops that update a layer have in common: the variables W, b and their slots, which are the
// first inputs, and the rule of the step.

#ifndef TFX_LARGEOUT_KERNELS_LAYER_UPDATE_H_
#define TFX_LARGEOUT_KERNELS_LAYER_UPDATE_H_

#include <optional>
#include <string>
#include <vector>

#include "core/candidate_batch.h"
#include "core/candidate_update.h"
#include "core/row_update.h"
#include "kernels/locked_variables.h"
#include "kernels/row_rule.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// W and b of a layer: variables 0 and, if there is a bias, 1.
core::LayerWeights WeightsOf(const LockedVariables& variables, int num_biases);

class LayerUpdate {
 public:
  // Reads the attributes num_biases, num_kernel_slots, num_bias_slots, method and update.
  absl::Status ReadAttributes(tensorflow::OpKernelConstruction* context);

  // Of the variables, in the order of the inputs.
  std::vector<std::string> Names() const;

  // How they are locked: shared, if the op only computes gradients.
  LockedVariables::Mode LockMode() const {
    return update_ ? LockedVariables::Mode::kExclusive : LockedVariables::Mode::kShared;
  }

  // Takes the learning rate and the rule's numbers from two inputs in a row. Refuses them, or slots
  // that don't fit, and changes nothing.
  absl::Status Set(tensorflow::OpKernelContext* context, const LockedVariables& variables,
                   int learning_rate);

  // Likewise for RuleOnGpu, where the rate is on the device: only its shape is looked at.
  absl::Status SetForDeviceRate(tensorflow::OpKernelContext* context,
                                const LockedVariables& variables, int learning_rate);

  // Gives the variables buffers of their own, unless the op only computes gradients.
  // REQUIRES: Set or SetForDeviceRate succeeded.
  absl::Status Own(LockedVariables* variables) const;

  // REQUIRES: Own succeeded.
  core::LayerRows Rows(const LockedVariables& variables) const;

  // None if the op only computes gradients.
  std::optional<core::RowUpdater> Updater(const core::RowKernels& kernels) const;
  std::optional<core::gpu::RowRule> RuleOnGpu(const float* learning_rate) const;

 private:
  absl::Status CheckSlots(const LockedVariables& variables) const;
  int KernelSlot() const { return 1 + num_biases_; }
  int BiasSlot() const { return KernelSlot() + num_kernel_slots_; }

  int num_biases_, num_kernel_slots_, num_bias_slots_;
  std::string method_;
  bool update_;
  RowRule rule_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_LAYER_UPDATE_H_
