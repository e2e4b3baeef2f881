// SPDX-License-Identifier: Apache-2.0
//
// The inputs of ops for a layer, on every device: variables W, perhaps b, and slots of an
// optimizer.

#ifndef TFX_LARGEOUT_KERNELS_LAYER_H_
#define TFX_LARGEOUT_KERNELS_LAYER_H_

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

// W and b, two consecutive variables.
class Layer {
 public:
  // Reads the attributes num_biases and dtype.
  absl::Status ReadAttributes(tensorflow::OpKernelConstruction* context);

  // The variables, in the order of the inputs.
  std::vector<std::string> Names() const;

  // Returns an error if variables don't form a layer. Checks only shapes and types.
  absl::Status CheckShapes(const LockedVariables& variables, int kernel = 0) const;

  core::LayerWeights Weights(const LockedVariables& variables, int kernel = 0) const;

  int num_biases() const { return num_biases_; }

 private:
  int num_biases_;
  tensorflow::DataType dtype_;
};

// The common part of ops that update a layer: W, b and their slots, which are the first inputs, and
// the rule of the step. Copies are cheap: each call uses a copy.
class LayerUpdate {
 public:
  // Reads the attributes of Layer, num_kernel_slots, num_bias_slots, method and update.
  absl::Status ReadAttributes(tensorflow::OpKernelConstruction* context);

  // Locks all variables: shared, if the op only computes gradients. Returns an error if W and b
  // don't fit.
  absl::Status Lock(tensorflow::OpKernelContext* context, LockedVariables* variables) const;

  // Takes the learning rate and the rule's numbers from two consecutive inputs. Returns an error if
  // they are invalid or slots don't fit, without changes. On a GPU only the shape of the rate is
  // checked.
  absl::Status Set(tensorflow::OpKernelContext* context, const LockedVariables& variables,
                   int learning_rate);

  // Gives the variables separate buffers, unless the op only computes gradients.
  // REQUIRES: Set succeeded.
  absl::Status Own(LockedVariables* variables) const;

  // REQUIRES: Own succeeded.
  core::LayerRows Rows(const LockedVariables& variables) const;

  const Layer& layer() const { return layer_; }

  // None if the op only computes gradients.
  std::optional<core::RowUpdater> Updater(const core::RowKernels& kernels) const;
  std::optional<core::gpu::RowRule> RuleOnGpu(const float* learning_rate) const;

 private:
  int KernelSlot() const { return 1 + layer_.num_biases(); }
  int BiasSlot() const { return KernelSlot() + num_kernel_slots_; }

  Layer layer_;
  int num_kernel_slots_, num_bias_slots_;
  std::string method_;
  bool update_;
  RowRule rule_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_LAYER_H_
