// SPDX-License-Identifier: Apache-2.0
//
// The places of classes are sorted by class; then a warp forms the gradient of a row and takes its
// step. With candidates that all examples share, what these add to gradients are products of
// matrices.

#include "core/gpu/candidate_update.h"

#include <algorithm>

#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/candidate_rows.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/products.h"
#include "core/gpu/row_step.h"
#include "core/gpu/scratch.h"
#include "core/gpu/sorted_classes.h"

namespace tfx::core::gpu {
namespace {

constexpr int64_t kMostBlocks = 4096;  // of warps that take classes in turn
constexpr int kColumns = 8;            // of a row, for a thread at a time

int64_t PlacesOf(const CandidateBatch& batch) {
  return batch.size * batch.num_labels + (batch.own ? batch.size : 1) * batch.num_candidates;
}

// Device memory. `S` and arrays that depend on it are for shared candidates only.
struct Memory {
  Memory(const LayerWeights& weights, const CandidateBatch& batch, Scratch* scratch)
      : classes(TakeSortedClasses(PlacesOf(batch), scratch)) {
    kernel_rates = scratch->Take<float>(PlacesOf(batch));
    bias_rates = scratch->Take<float>(PlacesOf(batch));
    if (batch.own) return;
    gradient = scratch->Take<float>(batch.size * batch.num_candidates);
    rows = scratch->Take<float>(batch.num_candidates * weights.width);
    kernel_gradient = scratch->Take<float>(batch.num_candidates * weights.width);
    bias_gradient = scratch->Take<float>(batch.num_candidates);
  }

  SortedClasses classes;
  float *kernel_rates, *bias_rates;  // of the touched classes, with Adam
  float* gradient = nullptr;         // G [N, S], 0 where there is no candidate
  float* rows = nullptr;             // W_S [S, D]
  float* kernel_gradient = nullptr;  // dL/dW_S [S, D]
  float* bias_gradient = nullptr;    // [S]
};

__device__ bool IsRefused(const CandidateFault* fault) {
  return fault != nullptr && *fault != kNoCandidateFault;
}

// Threads of a block that goes through n columns.
dim3 ThreadsFor(int64_t n) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(BlocksOf(n, kWarpSize), 1, kWarps)) *
              kWarpSize);
}

// A block for kWarpSize shared candidates: copies their columns of G, and sums them up.
__global__ void __launch_bounds__(kThreads)
    TakeGradient(CandidateBatch batch, int64_t num_classes, const float* from, float* to,
                 float* sums) {
  TFX_SHARED_MEMORY(memory);
  const int64_t s = int64_t{blockIdx.x} * kWarpSize + threadIdx.x % kWarpSize;
  const bool is_in = s < batch.num_candidates;
  const bool is_row = is_in && IsRow(num_classes, batch.candidates[s]);
  float sum = 0;
  for (int64_t i = threadIdx.x / kWarpSize; is_in && i < batch.size; i += kWarps) {
    const float g = is_row ? from[i * batch.num_candidates + s] : 0.f;
    to[i * batch.num_candidates + s] = g;
    sum += g;
  }
  sum = SumOfLane(sum, reinterpret_cast<float*>(memory));
  if (threadIdx.x < kWarpSize && is_in) sums[s] = sum;
}

// Returns the sum of g times entry d of row id, over n pairs of an id and a g.
__device__ float SumOfRows(const LayerWeights& weights, const int64_t* ids, const float* gradient,
                           int64_t n, int64_t d, float sum) {
  for (int64_t j = 0; j < n; ++j) {
    const int64_t id = ids[j];
    const bool is_row = IsRow(weights.num_classes, id);
    const float w = is_row ? KernelAt(weights, id, d) : 0.f;
    sum = fmaf(is_row ? gradient[j] : 0.f, w, sum);
  }
  return sum;
}

// A block for each example. dL/dh already contains the shared candidates.
__global__ void __launch_bounds__(kThreads)
    AddToHiddenGradient(LayerWeights weights, CandidateBatch batch, CandidateGradients gradients,
                        const CandidateFault* fault, float* hidden_gradient) {
  const int64_t i = blockIdx.x;
  const bool is_refused = IsRefused(fault);
  const int64_t label = i * batch.num_labels, candidate = i * batch.num_candidates;
  for (int64_t d = threadIdx.x; d < weights.width; d += blockDim.x) {
    float* const sum = hidden_gradient + i * weights.width + d;
    float total = SumOfRows(weights, batch.labels + label, gradients.labels + label,
                            batch.num_labels, d, batch.own ? 0.f : *sum);
    if (batch.own) {
      total = SumOfRows(weights, batch.candidates + candidate, gradients.candidates + candidate,
                        batch.num_candidates, d, total);
    }
    *sum = is_refused ? 0.f : total;
  }
}

// A thread per position; the first ones compute Adam's learning rates of the touched classes.
__global__ void __launch_bounds__(kThreads)
    CorrectRates(RowRule rule, LayerRows rows, const CandidateFault* fault, Memory memory) {
  const int64_t u = OwnIndex();
  if (u >= *memory.classes.num_classes || IsRefused(fault)) return;
  const uint64_t row = memory.classes.entries[memory.classes.begins[u]] >> 32;
  memory.kernel_rates[u] = RateOfNextAge(rule, rows.kernel.ages + row);
  if (rows.bias.weights != nullptr) {
    memory.bias_rates[u] = RateOfNextAge(rule, rows.bias.ages + row);
  }
}

// The places of a class.
struct Places {
  const uint64_t* begin;
  const uint64_t* end;
};

// What a position of a class adds to its gradient: `factor` times a row, and to that of its bias.
struct Term {
  const float* row;
  float factor, bias;
};

__device__ Term TermOf(const CandidateBatch& batch, int64_t width,
                       const CandidateGradients& gradients, const Memory& memory, uint64_t entry) {
  const auto num_labels = static_cast<uint32_t>(batch.size * batch.num_labels);
  const auto place = static_cast<uint32_t>(entry);
  const uint32_t s = place - num_labels;
  const bool is_label = place < num_labels;
  if (!is_label && !batch.own) {
    return {memory.kernel_gradient + s * width, 1, memory.bias_gradient[s]};
  }
  const float g = is_label ? gradients.labels[place] : gradients.candidates[s];
  const uint32_t example = is_label ? place / static_cast<uint32_t>(batch.num_labels)
                                    : s / static_cast<uint32_t>(batch.num_candidates);
  return {batch.hidden + example * width, g, g};
}

// Computes columns `first` + kWarpSize j of the gradient of a class, 0 where there is none, and
// returns the gradient of its bias. All threads of a warp call it, and each looks up a term.
__device__ float GradientOf(const CandidateBatch& batch, int64_t width,
                            const CandidateGradients& gradients, const Memory& memory,
                            const Places& places, int64_t first, float (&columns)[kColumns]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float bias = 0;
  for (float& column : columns) column = 0;
  for (const uint64_t* at = places.begin; at < places.end; at += kWarpSize) {
    const int64_t left = places.end - at;
    const int count = left < kWarpSize ? static_cast<int>(left) : kWarpSize;
    Term own = {};
    if (lane < count) own = TermOf(batch, width, gradients, memory, at[lane]);
    for (int i = 0; i < count; ++i) {
      const float* const row = OfLane(own.row, i);
      const float factor = __shfl_sync(~0u, own.factor, i);
      bias += __shfl_sync(~0u, own.bias, i);
      for (int j = 0; j < kColumns; ++j) {
        const int64_t d = first + j * kWarpSize;
        if (d < width) columns[j] = fmaf(factor, row[d], columns[j]);
      }
    }
  }
  return bias;
}

// A warp for each class; warps take classes in turn.
__global__ void __launch_bounds__(kThreads)
    UpdateClasses(RowRule rule, int64_t width, LayerRows rows, CandidateBatch batch,
                  CandidateGradients gradients, const CandidateFault* fault, Memory memory) {
  if (IsRefused(fault)) return;
  const bool is_adam = rule.step.method == RowMethod::kAdam;
  const float clip_norm = rule.step.clip_norm;
  const float learning_rate = *rule.learning_rate, kept = KeptBy(rule);
  const SortedClasses& classes = memory.classes;
  const uint32_t num_classes = *classes.num_classes;
  const unsigned lane = threadIdx.x % kWarpSize;
  float columns[kColumns];
  for (uint32_t u = blockIdx.x * kWarps + threadIdx.x / kWarpSize; u < num_classes;
       u += gridDim.x * kWarps) {
    const Places places = {classes.entries + classes.begins[u],
                           classes.entries + classes.begins[u + 1]};
    const auto row = static_cast<int64_t>(*places.begin >> 32);
    float scale = 1;
    if (clip_norm != INFINITY) {
      float squares = 0;
      for (int64_t begin = 0; begin < width; begin += kColumns * kWarpSize) {
        GradientOf(batch, width, gradients, memory, places, begin + lane, columns);
        for (float g : columns) squares = fmaf(g, g, squares);
      }
      scale = ClipScale(clip_norm, OfWarp(squares, Sum()));
    }
    const float rate = is_adam ? memory.kernel_rates[u] : learning_rate;
    for (int64_t begin = 0; begin == 0 || begin < width; begin += kColumns * kWarpSize) {
      const int64_t first = begin + lane;
      const float g = GradientOf(batch, width, gradients, memory, places, first, columns);
      for (int j = 0; j < kColumns; ++j) {
        const int64_t d = first + j * kWarpSize;
        if (d >= width) break;
        StepWeight(rule.step, rate, kept, scale * columns[j], rows.kernel, row * width + d);
      }
      if (first == 0 && rows.bias.weights != nullptr) {
        const float rate_of_bias = is_adam ? memory.bias_rates[u] : learning_rate;
        StepWeight(rule.step, rate_of_bias, kept, ClipScale(clip_norm, g * g) * g, rows.bias, row);
      }
    }
  }
}

Error Update(CUstream_st* stream, const LayerWeights& weights, const LayerRows& rows,
             const CandidateBatch& batch, const CandidateGradients& gradients, const RowRule& rule,
             const CandidateFault* fault, const Memory& memory) {
  const int64_t num_places = PlacesOf(batch), num_labels = batch.size * batch.num_labels;
  if (num_places == 0) return LastError();
  SortClasses(stream, batch.labels, num_labels, batch.candidates, num_places - num_labels,
              weights.num_classes, memory.classes);
  const bool is_adam = rule.step.method == RowMethod::kAdam;
  if (is_adam) TFX_LAUNCH_THREADS(CorrectRates, num_places, stream, rule, rows, fault, memory);
  Error error = LastError();
  if (!error.ok()) return error;
  TFX_LAUNCH_BLOCKS(UpdateClasses, std::min(BlocksOf(num_places, kWarps), kMostBlocks), stream,
                    rule, weights.width, rows, batch, gradients, fault, memory);
  error = LastError();
  return is_adam ? error.AfterChanges() : error;  // of ages
}

}  // namespace

int64_t CandidateUpdateScratchBytes(const LayerWeights& weights, const CandidateBatch& batch) {
  Scratch scratch(nullptr);
  Memory(weights, batch, &scratch);
  return scratch.bytes();
}

Error CandidateUpdate(CUstream_st* stream, const LayerWeights& weights, const LayerRows& rows,
                      const CandidateBatch& batch, const CandidateGradients& gradients,
                      const RowRule* rule, const CandidateFault* fault, void* scratch,
                      float* hidden_gradient) {
  ForgetErrors();
  Scratch dealt(scratch);
  const Memory memory(weights, batch, &dealt);
  if (!batch.own) {
    const int64_t s = batch.num_candidates, width = weights.width;
    if (s > 0) {
      TFX_LAUNCH(TakeGradient, Grid(BlocksOf(s, kWarpSize)), dim3(kThreads),
                 kThreads * sizeof(float), stream, batch, weights.num_classes, gradients.candidates,
                 memory.gradient, memory.bias_gradient);
    }
    const Precision precision = Precision::kFloat32;
    Error error;
    if (hidden_gradient != nullptr) {
      GatherRows(stream, weights, batch.candidates, s, memory.rows);
      error = Multiply(stream, precision, {memory.gradient, false}, {memory.rows, false},
                       batch.size, width, s, false, hidden_gradient);
    }
    if (error.ok() && rule != nullptr) {
      error = Multiply(stream, precision, {memory.gradient, true}, {batch.hidden, false}, s, width,
                       batch.size, false, memory.kernel_gradient);
    }
    if (!error.ok()) return error;
  }
  if (batch.size > 0 && hidden_gradient != nullptr) {
    TFX_LAUNCH(AddToHiddenGradient, Grid(batch.size), ThreadsFor(weights.width), 0, stream, weights,
               batch, gradients, fault, hidden_gradient);
  }
  if (rule == nullptr) return LastError();
  return Update(stream, weights, rows, batch, gradients, *rule, fault, memory);
}

}  // namespace tfx::core::gpu
