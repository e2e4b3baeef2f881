// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/softmax_update.h"

#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/row_step.h"

namespace tfx::core::gpu {
namespace {

// Arrays in the scratch memory.
struct Memory {
  Memory(const SoftmaxUpdateInputs& in, Scratch* scratch)
      : size(ClassesAtATime(in.weights.num_classes, std::max(in.batch.size, in.weights.width),
                            in.numbers_at_a_time)),
        blocks(in.weights, in.batch.hidden, in.batch.size, size, in.precision, scratch),
        logits(scratch->Take<float>(in.batch.size * size)),
        rounded(in.precision == Precision::kBfloat16 ? scratch->Take<uint16_t>(in.batch.size * size)
                                                     : nullptr),
        kernel_gradient(scratch->Take<float>(in.updates ? size * in.weights.width : 0)),
        bias_gradient(scratch->Take<float>(size)) {}

  int64_t size;  // classes of a block
  ClassBlocks blocks;
  float* logits;      // [B, size], then their gradients
  uint16_t* rounded;  // the gradients as factors, or null
  float* kernel_gradient;
  float* bias_gradient;
};

// Classes [begin, begin + columns).
struct Block {
  int64_t begin, columns;
};

// Adds the gradients of label k of an example where its class is in columns [first, end). Of equal
// labels the first one adds all, in their order.
__device__ void AddTargetGradient(const SoftmaxBatch& batch, int64_t example, int64_t k,
                                  const Block& block, int64_t first, int64_t end, float* gradient) {
  const int64_t* labels = batch.labels + example * batch.num_labels;
  const int64_t label = labels[k];
  if (label < block.begin + first || label >= block.begin + end) return;
  for (int64_t j = 0; j < k; ++j) {
    if (labels[j] == label) return;
  }
  float& sum = gradient[label - block.begin];
  for (int64_t j = k; j < batch.num_labels; ++j) {
    if (labels[j] == label) sum += batch.target_gradient[example * batch.num_labels + j];
  }
}

// Makes dL/do of o - b, in place, and `rounded` of it unless that is null. A block of threads for
// each example and chunk of the columns.
__global__ void __launch_bounds__(kThreads)
    ToGradients(LayerWeights weights, SoftmaxBatch batch, Block block, float* logits,
                uint16_t* rounded) {
  const int64_t example = blockIdx.x, first = blockIdx.y * kChunk;
  const int64_t end = first + kChunk < block.columns ? first + kChunk : block.columns;
  const float log_z = batch.logsumexp[example], scale = batch.log_z_gradient[example];
  const float offset = batch.mean_gradient == nullptr
                           ? 0
                           : batch.mean_gradient[example] / static_cast<float>(weights.num_classes);
  float* of_example = logits + example * block.columns;
  for (int64_t c = first + threadIdx.x; c < end; c += kThreads) {
    const float excess = of_example[c] + BiasOf(weights, block.begin + c) - log_z;
    of_example[c] = scale * (excess > 0 ? 1.f : expf(excess)) + offset;
  }
  __syncthreads();
  for (int64_t k = threadIdx.x; k < batch.num_labels; k += kThreads) {
    AddTargetGradient(batch, example, k, block, first, end, of_example);
  }
  if (rounded == nullptr) return;
  __syncthreads();
  for (int64_t c = first + threadIdx.x; c < end; c += kThreads) {
    Set(rounded + example * block.columns + c, of_example[c]);
  }
}

// Sums [columns] over the rows of a matrix [n, columns]. A block of threads for kWarpSize columns.
__global__ void __launch_bounds__(kThreads)
    SumRows(const float* matrix, int64_t n, int64_t columns, float* sums) {
  TFX_SHARED_MEMORY(memory);
  const int64_t column = int64_t{blockIdx.x} * kWarpSize + threadIdx.x % kWarpSize;
  float sum = 0;
  for (int64_t i = threadIdx.x / kWarpSize; column < columns && i < n; i += kWarps) {
    sum += matrix[i * columns + column];
  }
  sum = SumOfLane(sum, reinterpret_cast<float*>(memory));
  if (threadIdx.x < kWarpSize && column < columns) sums[column] = sum;
}

// Changes a row by its gradient. All threads of a warp call it.
__device__ void StepOnRow(const RowRule& rule, const WeightRows& rows, int64_t row,
                          const float* gradient) {
  const unsigned lane = threadIdx.x % kWarpSize;
  float rate = *rule.learning_rate;
  if (rows.ages != nullptr) {
    rate = OfWarp(lane == 0 ? RateOfNextAge(rule, rows.ages + row) : 0.f, Sum());
  }
  float scale = 1;
  if (!isinf(rule.step.clip_norm)) {
    float squares = 0;
    for (int64_t d = lane; d < rows.width; d += kWarpSize) squares += gradient[d] * gradient[d];
    scale = ClipScale(rule.step.clip_norm, OfWarp(squares, Sum()));
  }
  const float kept = KeptBy(rule);
  for (int64_t d = lane; d < rows.width; d += kWarpSize) {
    StepWeight(rule.step, rate, kept, scale * gradient[d], rows, row * rows.width + d);
  }
}

// A warp for each row.
__global__ void __launch_bounds__(kThreads)
    StepOnRows(LayerRows rows, RowRule rule, Block block, const float* kernel_gradient,
               const float* bias_gradient) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (i >= block.columns) return;
  const int64_t row = block.begin + i;
  StepOnRow(rule, rows.kernel, row, kernel_gradient + i * rows.kernel.width);
  if (rows.bias.weights != nullptr) StepOnRow(rule, rows.bias, row, bias_gradient + i);
}

// One call.
class Pass {
 public:
  Pass(CUstream_st* stream, const SoftmaxUpdateInputs& in, Scratch scratch, float* hidden_gradient)
      : stream_(stream), in_(in), memory_(in, &scratch), hidden_gradient_(hidden_gradient) {}

  Error Run() {
    ForgetErrors();
    Error error = memory_.blocks.Begin(stream_);
    const int64_t num_classes = in_.weights.num_classes;
    for (int64_t begin = 0; error.ok() && begin < num_classes; begin += memory_.size) {
      const Block block = {begin, std::min(memory_.size, num_classes - begin)};
      error = ComputeGradients(block);
      if (error.ok() && in_.updates) error = Update(block);
      if (begin > 0 && in_.updates) error = error.AfterChanges();
    }
    return error.ok() ? LastError() : error;
  }

 private:
  Error ComputeGradients(const Block& block) {
    const int64_t batch = in_.batch.size;
    Error error = memory_.blocks.Logits(stream_, block.begin, block.columns, memory_.logits);
    if (!error.ok() || batch == 0) return error;
    TFX_LAUNCH(ToGradients, Grid(batch, BlocksOf(block.columns, kChunk)), dim3(kThreads), 0,
               stream_, in_.weights, in_.batch, block, memory_.logits, memory_.rounded);
    return Multiply(stream_, in_.precision, {Gradients(), false}, {memory_.blocks.kernel(), false},
                    batch, in_.weights.width, block.columns, block.begin > 0, hidden_gradient_);
  }

  Error Update(const Block& block) {
    Error error =
        Multiply(stream_, in_.precision, {Gradients(), true}, {memory_.blocks.hidden(), false},
                 block.columns, in_.weights.width, in_.batch.size, false, memory_.kernel_gradient);
    if (!error.ok()) return error;
    if (in_.weights.bias != nullptr) {
      TFX_LAUNCH(SumRows, Grid(BlocksOf(block.columns, kWarpSize)), dim3(kThreads),
                 kThreads * sizeof(float), stream_, memory_.logits, in_.batch.size, block.columns,
                 memory_.bias_gradient);
    }
    TFX_LAUNCH_BLOCKS(StepOnRows, BlocksOf(block.columns, kWarps), stream_, in_.rows, in_.rule,
                      block, memory_.kernel_gradient, memory_.bias_gradient);
    return LastError();
  }

  const void* Gradients() const {
    return memory_.rounded == nullptr ? static_cast<const void*>(memory_.logits) : memory_.rounded;
  }

  CUstream_st* const stream_;
  const SoftmaxUpdateInputs& in_;
  Memory memory_;
  float* const hidden_gradient_;
};

}  // namespace

int64_t SoftmaxUpdateScratchBytes(const SoftmaxUpdateInputs& inputs) {
  Scratch scratch(nullptr);
  Memory memory(inputs, &scratch);
  return scratch.bytes();
}

Error SoftmaxUpdate(CUstream_st* stream, const SoftmaxUpdateInputs& inputs, void* scratch,
                    float* hidden_gradient) {
  return Pass(stream, inputs, Scratch(scratch), hidden_gradient).Run();
}

}  // namespace tfx::core::gpu
