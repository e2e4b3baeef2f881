// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/class_blocks.h"

#include "core/gpu/converted_copies.h"

namespace tfx::core::gpu {

ClassBlocks::ClassBlocks(const LayerWeights& weights, const float* hidden, int64_t batch,
                         int64_t size, Precision precision, Scratch* scratch)
    : weights_(weights),
      given_hidden_(hidden),
      batch_(batch),
      precision_(precision),
      copies_kernel_(CopiesKernel(weights, precision)),
      hidden_(hidden) {
  const bool rounds = precision == Precision::kBfloat16;
  kernel_copy_ = scratch->Take<char>(copies_kernel_ ? size * weights.width * (rounds ? 2 : 4) : 0);
  hidden_copy_ = scratch->Take<uint16_t>(rounds ? batch * weights.width : 0);
}

Error ClassBlocks::Begin(CUstream_st* stream) {
  if (precision_ != Precision::kBfloat16) return {};
  hidden_ = hidden_copy_;
  Copy(stream, given_hidden_, batch_ * weights_.width, hidden_copy_);
  return LastError();
}

Error ClassBlocks::Logits(CUstream_st* stream, int64_t begin, int64_t columns, float* o) {
  const int64_t width = weights_.width;
  kernel_ = weights_.Row(begin);
  if (copies_kernel_) {
    const int64_t n = columns * width;
    if (weights_.is_bfloat16) {
      Copy(stream, static_cast<const uint16_t*>(kernel_), n, static_cast<float*>(kernel_copy_));
    } else {
      Copy(stream, static_cast<const float*>(kernel_), n, static_cast<uint16_t*>(kernel_copy_));
    }
    kernel_ = kernel_copy_;
  }
  return Multiply(stream, precision_, {hidden_, false}, {kernel_, true}, batch_, columns, width,
                  false, o);
}

}  // namespace tfx::core::gpu
