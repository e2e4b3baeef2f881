// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/class_blocks.h"

#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/launch.h"

namespace tfx::core::gpu {
namespace {

constexpr int64_t kMostBlocks = 4096;

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) Convert(const From* from, int64_t n, To* to) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    Set(to + i, ToFloat(from[i]));
  }
}

template <typename From, typename To>
const char* Copy(CUstream_st* stream, const From* from, int64_t n, To* to) {
  if (n == 0) return nullptr;
  TFX_LAUNCH((Convert<From, To>), Grid(std::min(BlocksOf(n, kThreads), kMostBlocks)),
             dim3(kThreads), 0, stream, from, n, to);
  return LastError();
}

}  // namespace

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

const char* ClassBlocks::Begin(CUstream_st* stream) {
  if (precision_ != Precision::kBfloat16) return nullptr;
  hidden_ = hidden_copy_;
  return Copy(stream, given_hidden_, batch_ * weights_.width, hidden_copy_);
}

const char* ClassBlocks::Logits(CUstream_st* stream, int64_t begin, int64_t columns, float* o) {
  const int64_t width = weights_.width;
  kernel_ = weights_.Row(begin);
  if (copies_kernel_) {
    const int64_t n = columns * width;
    const char* error = weights_.is_bfloat16 ? Copy(stream, static_cast<const uint16_t*>(kernel_),
                                                    n, static_cast<float*>(kernel_copy_))
                                             : Copy(stream, static_cast<const float*>(kernel_), n,
                                                    static_cast<uint16_t*>(kernel_copy_));
    if (error != nullptr) return error;
    kernel_ = kernel_copy_;
  }
  return Multiply(stream, precision_, {hidden_, false}, {kernel_, true}, batch_, columns, width,
                  false, o);
}

}  // namespace tfx::core::gpu
