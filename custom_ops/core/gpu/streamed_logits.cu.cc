// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/streamed_logits.h"

#include <algorithm>

#include "core/gpu/best_keys.h"
#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/class_blocks.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/own_logits.h"
#include "core/gpu/streamed_softmax.h"

namespace tfx::core::gpu {
namespace {

// The results over the classes of a block of threads: it reads a chunk of each block of classes,
// always the same. `[chunks, B]`, then more dimensions.
struct Found {
  SoftmaxTerms* terms;
  uint64_t* keys;  // [.., k] the best, falling
  int64_t* above;  // [.., K] how many classes are above the label
};

struct Memory {
  Memory(const StreamedLogitsInputs& in, Precision precision, Scratch* scratch)
      : size(ClassesAtATime(in.weights.num_classes, NumbersOfClass(in.weights, in.batch, precision),
                            kNumbersAtATime)),
        num_chunks(BlocksOf(size, kChunk)),
        blocks(in.weights, in.hidden, in.batch, size, precision, scratch),
        logits(scratch->Take<float>(in.batch * size)) {
    const int64_t n = num_chunks * in.batch;
    found.terms = scratch->Take<SoftmaxTerms>(n);
    found.keys = scratch->Take<uint64_t>(n * in.k);
    found.above = scratch->Take<int64_t>(n * in.num_labels);
  }

  int64_t size, num_chunks;  // classes of a block, and chunks of them
  ClassBlocks blocks;
  float* logits;  // [B, size]
  Found found;
};

__device__ int64_t RowOfLabel(const StreamedLogitsInputs& in, int64_t label) {
  return label < 0 ? -1 : in.shard.RowOf(label);
}

// A warp for each label.
__global__ void __launch_bounds__(kThreads)
    TargetLogits(StreamedLogitsInputs in, StreamedLogitsOutputs out) {
  const int64_t pair = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (pair >= in.batch * in.num_labels) return;
  const int64_t row = RowOfLabel(in, in.labels[pair]);
  const float* h = in.hidden + pair / in.num_labels * in.weights.width;
  float sum = 0;
  if (row >= 0) {
    for (int64_t d = threadIdx.x % kWarpSize; d < in.weights.width; d += kWarpSize) {
      sum += h[d] * KernelAt(in.weights, row, d);
    }
  }
  sum = OfWarp(sum, Sum());
  if (threadIdx.x % kWarpSize != 0) return;
  out.target_logits[pair] = row < 0 ? 0 : sum + BiasOf(in.weights, row);
}

// Shared memory of a block of threads.
struct Shared {
  static constexpr size_t kReductionBytes = sizeof(SoftmaxTerms) * kWarps;

  // `k` may be 0.
  static size_t Bytes(int64_t k) {
    return kReductionBytes + 8 * static_cast<size_t>(1 + NumKeys(k));
  }
  static int64_t NumKeys(int64_t k) { return k == 0 ? 0 : SizeOfBestKeys(k); }

  __device__ explicit Shared(unsigned char* memory)
      : reduction(memory),
        count(reinterpret_cast<unsigned*>(memory + kReductionBytes)),
        keys(reinterpret_cast<uint64_t*>(memory + kReductionBytes + 8)) {}

  void* reduction;
  unsigned* count;
  uint64_t* keys;
};

__device__ void CountAbove(const StreamedLogitsInputs& in, const OwnLogits& own, float target,
                           int64_t label, const Shared& shared, bool is_first, int64_t* above) {
  target = NumberOf(target);
  const auto rows_below = static_cast<int>(in.shard.RowsBelow(label));
  const int own_row = in.shard.ClassOf(rows_below) == label ? rows_below : -1;
  unsigned count = 0;
  for (int j = 0; j < OwnLogits::kCount; ++j) {
    const float other = NumberOf(own[j]);
    const bool is_above = other > target || (other == target && own.Row(j) < rows_below);
    if (is_above && own.Row(j) != own_row && own.IsThere(j)) ++count;
  }
  const unsigned total = OfBlock(count, Sum(), shared.reduction);
  if (threadIdx.x == 0) *above = (is_first ? 0 : *above) + total;
}

__device__ void FindBest(const OwnLogits& own, int64_t k, const Shared& shared, int64_t num_keys,
                         bool is_first, uint64_t* best) {
  BestKeys found(shared.keys, num_keys, k, shared.count, is_first ? nullptr : best);
  unsigned better = 0;
  if (found.Beats(KeyOf(own.maximum(), own.Row(0)))) {  // else no own logit is better
    for (int j = 0; j < OwnLogits::kCount; ++j) {
      better += own.IsThere(j) && found.Beats(KeyOf(own[j], own.Row(j))) ? 1 : 0;
    }
  }
  better = OfBlock(better, Sum(), shared.reduction);
  if (better == 0 && !is_first) return;
  const bool fit = found.Fit(better);
  for (int j = 0; j < OwnLogits::kCount; ++j) {  // equally often in all threads
    found.Offer(own.IsThere(j) ? KeyOf(own.FromMemory(j), own.Row(j)) : 0);
    if (!fit) found.MakeRoom();
  }
  found.Sort();
  for (int64_t i = threadIdx.x; i < k; i += kThreads) best[i] = found[i];
}

// A block of threads for each example and chunk of the classes [begin, begin + columns).
__global__ void __launch_bounds__(kThreads)
    LookAtChunk(StreamedLogitsInputs in, StreamedLogitsOutputs out, Found found,
                const float* logits, int64_t begin, int64_t columns, int64_t num_keys) {
  TFX_SHARED_MEMORY(memory);
  const Shared shared(memory);
  const int64_t example = blockIdx.x, chunk = blockIdx.y;
  const int64_t at = chunk * in.batch + example;
  const bool is_first = begin == 0;
  const int64_t first = chunk * kChunk;
  const int64_t end = first + kChunk < columns ? first + kChunk : columns;
  const OwnLogits own(in.weights, logits + example * columns + first, begin + first, begin + end);
  const SoftmaxTerms terms = TermsOfBlock(own, static_cast<SoftmaxTerms*>(shared.reduction));
  if (threadIdx.x == 0) found.terms[at] = is_first ? terms : found.terms[at] + terms;
  for (int64_t label = 0; out.target_ranks != nullptr && label < in.num_labels; ++label) {
    const int64_t pair = example * in.num_labels + label;
    const float* targets = in.target_scores == nullptr ? out.target_logits : in.target_scores;
    CountAbove(in, own, targets[pair], in.labels[pair], shared, is_first,
               found.above + at * in.num_labels + label);
  }
  if (in.k > 0) FindBest(own, in.k, shared, num_keys, is_first, found.keys + at * in.k);
}

__device__ void MergeSoftmax(const StreamedLogitsInputs& in, const Found& found, int64_t num_chunks,
                             const Shared& shared, float* logsumexp) {
  const int64_t example = blockIdx.x;
  SoftmaxTerms own;
  for (int64_t chunk = threadIdx.x; chunk < num_chunks; chunk += kThreads) {
    own = own + found.terms[chunk * in.batch + example];
  }
  const float maximum = OfBlock(own.maximum, Max(), shared.reduction);
  const double sum = OfBlock(own.sum * ExpBelow(own.maximum, maximum), Sum(), shared.reduction);
  if (threadIdx.x == 0) *logsumexp = LogOfSum(sum, maximum);
}

__device__ void MergeRanks(const StreamedLogitsInputs& in, const Found& found, int64_t num_chunks,
                           const Shared& shared, int64_t* ranks) {
  for (int64_t label = 0; label < in.num_labels; ++label) {
    const int64_t pair = blockIdx.x * in.num_labels + label;
    int64_t above = 0;
    for (int64_t chunk = threadIdx.x; chunk < num_chunks; chunk += kThreads) {
      above += found.above[chunk * in.batch * in.num_labels + pair];
    }
    above = OfBlock(above, Sum(), shared.reduction);
    const int64_t id = in.labels[pair];
    const bool is_ranked = in.target_scores == nullptr ? RowOfLabel(in, id) >= 0 : id >= 0;
    if (threadIdx.x == 0) ranks[pair] = is_ranked ? above : -1;
  }
}

__device__ void MergeBest(const StreamedLogitsInputs& in, const Found& found, int64_t num_chunks,
                          const Shared& shared, int64_t num_keys,
                          const StreamedLogitsOutputs& out) {
  const int64_t example = blockIdx.x;
  BestKeys best(shared.keys, num_keys, in.k, shared.count, nullptr);
  for (int64_t first = 0; first < num_chunks * in.k; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const int64_t at = i / in.k * in.batch + example;
    best.Offer(i < num_chunks * in.k ? found.keys[at * in.k + i % in.k] : 0);
    best.MakeRoom();
  }
  best.Sort();
  for (int64_t i = threadIdx.x; i < in.k; i += kThreads) {
    out.top_scores[example * in.k + i] = LogitOf(best[i]);
    out.top_ids[example * in.k + i] = in.shard.ClassOf(RowOf(best[i]));
  }
}

// A block of threads for each example: merges the results of all chunks.
__global__ void __launch_bounds__(kThreads)
    MergeChunks(StreamedLogitsInputs in, StreamedLogitsOutputs out, Found found, int64_t num_chunks,
                int64_t num_keys) {
  TFX_SHARED_MEMORY(memory);
  const Shared shared(memory);
  MergeSoftmax(in, found, num_chunks, shared, out.logsumexp + blockIdx.x);
  if (out.target_ranks != nullptr) MergeRanks(in, found, num_chunks, shared, out.target_ranks);
  if (in.k > 0) MergeBest(in, found, num_chunks, shared, num_keys, out);
}

}  // namespace

int64_t StreamedLogitsScratchBytes(const StreamedLogitsInputs& inputs, Precision precision) {
  Scratch scratch(nullptr);
  Memory memory(inputs, precision, &scratch);
  return scratch.bytes();
}

Error StreamedLogits(CUstream_st* stream, const StreamedLogitsInputs& inputs, Precision precision,
                     void* scratch, const StreamedLogitsOutputs& outputs) {
  if (inputs.batch == 0) return {};
  ForgetErrors();
  Scratch pieces(scratch);
  Memory memory(inputs, precision, &pieces);
  const int64_t num_keys = Shared::NumKeys(inputs.k);

  const int64_t num_targets = inputs.batch * inputs.num_labels;
  TFX_LAUNCH_BLOCKS(TargetLogits, BlocksOf(num_targets, kWarps), stream, inputs, outputs);
  Error error = memory.blocks.Begin(stream);
  for (int64_t begin = 0; error.ok() && begin < inputs.weights.num_classes; begin += memory.size) {
    const int64_t columns = std::min(memory.size, inputs.weights.num_classes - begin);
    error = memory.blocks.Logits(stream, begin, columns, memory.logits);
    if (!error.ok()) break;
    TFX_LAUNCH(LookAtChunk, Grid(inputs.batch, BlocksOf(columns, kChunk)), dim3(kThreads),
               Shared::Bytes(inputs.k), stream, inputs, outputs, memory.found, memory.logits, begin,
               columns, num_keys);
  }
  if (!error.ok()) return error;
  TFX_LAUNCH(MergeChunks, Grid(inputs.batch), dim3(kThreads), Shared::Bytes(inputs.k), stream,
             inputs, outputs, memory.found, memory.num_chunks, num_keys);
  return LastError();
}

}  // namespace tfx::core::gpu
