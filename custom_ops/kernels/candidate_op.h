// SPDX-License-Identifier: Apache-2.0
//
// What the ops on labels and candidates are on every device: their variables, arguments and results
// as core takes them. Looks at no number in a tensor, but for the rule's.

#ifndef TFX_LARGEOUT_KERNELS_CANDIDATE_OP_H_
#define TFX_LARGEOUT_KERNELS_CANDIDATE_OP_H_

#include <string>
#include <vector>

#include "core/candidate_batch.h"
#include "core/candidate_logits.h"
#include "core/candidate_update.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Hidden, labels and candidates are three inputs in a row.
struct CandidateInputs {
  const tensorflow::Tensor& hidden;
  const tensorflow::Tensor& labels;
  const tensorflow::Tensor& candidates;

  CandidateInputs(tensorflow::OpKernelContext* context, int first)
      : hidden(context->input(first)),
        labels(context->input(first + 1)),
        candidates(context->input(first + 2)) {}

  tensorflow::TensorShape OfLogits() const {
    return {hidden.dim_size(0), candidates.dim_size(candidates.dims() - 1)};
  }

  core::CandidateBatch Batch() const;
};

// W and b, the first variables of both ops.
class CandidateLayer {
 public:
  // Reads the attributes num_biases and dtype.
  absl::Status ReadAttributes(tensorflow::OpKernelConstruction* context);

  std::vector<std::string> Names() const;

  // Refuses weights, or a batch, that don't fit.
  absl::Status CheckShapes(const LockedVariables& variables, const CandidateInputs& inputs) const;

  core::LayerWeights Weights(const LockedVariables& variables) const;

 private:
  int num_biases_;
  tensorflow::DataType dtype_;
};

absl::Status AllocateCandidateLogits(tensorflow::OpKernelContext* context,
                                     const CandidateInputs& inputs,
                                     core::CandidateLogitsOutputs* outputs);

// The gradients of the logits are the two inputs after the candidates; then come the learning rate
// and the rule.
struct CandidateGradientInputs {
  const tensorflow::Tensor& labels;
  const tensorflow::Tensor& candidates;
  const int learning_rate;

  CandidateGradientInputs(tensorflow::OpKernelContext* context, int first)
      : labels(context->input(first)),
        candidates(context->input(first + 1)),
        learning_rate(first + 2) {}

  core::CandidateGradients Gradients() const {
    return {labels.flat<float>().data(), candidates.flat<float>().data()};
  }
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_CANDIDATE_OP_H_
