// SPDX-License-Identifier: Apache-2.0
//
// The ops on labels and candidates on every device: their arguments and results in the form for
// core, and checks of shapes. Values in tensors are not read.

#ifndef TFX_LARGEOUT_KERNELS_CANDIDATE_OP_H_
#define TFX_LARGEOUT_KERNELS_CANDIDATE_OP_H_

#include <cstdint>

#include "core/candidate_batch.h"
#include "core/candidate_logits.h"
#include "core/candidate_update.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Returns an error if the shapes of a batch don't fit together, or don't fit the width of a layer.
absl::Status CheckBatchShapes(const tensorflow::Tensor& hidden, const tensorflow::Tensor& labels,
                              const tensorflow::Tensor& candidates, int64_t width);

// Hidden, labels and candidates are three consecutive inputs, from `first` on. In an update, the
// gradients of the logits, the learning rate and the rule follow.
struct CandidateInputs {
  const tensorflow::Tensor& hidden;
  const tensorflow::Tensor& labels;
  const tensorflow::Tensor& candidates;
  const int gradients, learning_rate;  // inputs

  CandidateInputs(tensorflow::OpKernelContext* context, int first)
      : hidden(context->input(first)),
        labels(context->input(first + 1)),
        candidates(context->input(first + 2)),
        gradients(first + 3),
        learning_rate(first + 5) {}

  // Returns an error if a batch doesn't fit the width of a layer.
  absl::Status CheckShapes(int64_t width) const {
    return CheckBatchShapes(hidden, labels, candidates, width);
  }

  tensorflow::TensorShape OfLogits() const {
    return {hidden.dim_size(0), candidates.dim_size(candidates.dims() - 1)};
  }

  core::CandidateBatch Batch() const;

  // Returns an error if gradients don't have the shapes of labels [N, K] and logits [N, S].
  absl::Status GetGradients(tensorflow::OpKernelContext* context,
                            core::CandidateGradients* of_logits) const;

  absl::Status AllocateLogits(tensorflow::OpKernelContext* context,
                              core::CandidateLogitsOutputs* outputs) const;

  // Gives dL/dh [N, D], or null and an output [0, D] where it is not wanted.
  absl::Status AllocateGradient(tensorflow::OpKernelContext* context, bool wanted,
                                float** hidden_gradient) const;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_CANDIDATE_OP_H_
