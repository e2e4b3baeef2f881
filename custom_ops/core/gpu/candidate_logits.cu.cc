// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/candidate_logits.h"

#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/candidate_rows.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/products.h"
#include "core/gpu/scratch.h"

namespace tfx::core::gpu {
namespace {

// A warp for each of n ids, `of_example` ones an example.
__global__ void __launch_bounds__(kThreads)
    LogitsOfPairs(LayerWeights weights, const float* hidden, const int64_t* ids, int64_t n,
                  int64_t of_example, float* logits) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (i >= n) return;
  const int64_t id = ids[i], width = weights.width;
  const bool is_row = IsRow(weights.num_classes, id);
  const float* h = hidden + i / of_example * width;
  float sum = 0;
  if (is_row) {
    for (int64_t d = threadIdx.x % kWarpSize; d < width; d += kWarpSize) {
      sum = fmaf(h[d], KernelAt(weights, id, d), sum);
    }
  }
  sum = OfWarp(sum, Sum());
  if (threadIdx.x % kWarpSize == 0) logits[i] = is_row ? sum + BiasOf(weights, id) : 0.f;
}

// A thread for each logit of a candidate: finds whether it is a hit. Where candidates are shared,
// the logit is a product as yet.
__global__ void __launch_bounds__(kThreads)
    FinishLogits(LayerWeights weights, CandidateBatch batch, float* logits, bool* hits) {
  const int64_t i = OwnIndex();
  if (i >= batch.size * batch.num_candidates) return;
  const int64_t example = i / batch.num_candidates;
  const int64_t id = batch.candidates[batch.own ? i : i - example * batch.num_candidates];
  const bool is_row = IsRow(weights.num_classes, id);
  if (!batch.own) logits[i] = is_row ? logits[i] + BiasOf(weights, id) : 0.f;
  const int64_t* labels = batch.labels + example * batch.num_labels;
  bool is_hit = false;
  for (int64_t k = 0; k < batch.num_labels; ++k) is_hit = is_hit || labels[k] == id;
  hits[i] = is_hit && is_row;
}

void BeginPairs(CUstream_st* stream, const LayerWeights& weights, const CandidateBatch& batch,
                const int64_t* ids, int64_t of_example, float* logits) {
  const int64_t n = batch.size * of_example;
  TFX_LAUNCH_BLOCKS(LogitsOfPairs, BlocksOf(n, kWarps), stream, weights, batch.hidden, ids, n,
                    of_example, logits);
}

}  // namespace

int64_t CandidateLogitsScratchBytes(const LayerWeights& weights, const CandidateBatch& batch) {
  Scratch scratch(nullptr);
  if (!batch.own) scratch.Take<float>(batch.num_candidates * weights.width);
  return scratch.bytes();
}

Error CandidateLogits(CUstream_st* stream, const LayerWeights& weights, const CandidateBatch& batch,
                      void* scratch, const CandidateLogitsOutputs& outputs) {
  ForgetErrors();
  BeginPairs(stream, weights, batch, batch.labels, batch.num_labels, outputs.true_logits);
  const int64_t n = batch.size * batch.num_candidates;
  if (batch.own) {
    BeginPairs(stream, weights, batch, batch.candidates, batch.num_candidates,
               outputs.candidate_logits);
  } else if (n > 0) {
    auto* rows = static_cast<float*>(scratch);
    GatherRows(stream, weights, batch.candidates, batch.num_candidates, rows);
    Error error =
        Multiply(stream, Precision::kFloat32, {batch.hidden, false}, {rows, true}, batch.size,
                 batch.num_candidates, weights.width, false, outputs.candidate_logits);
    if (!error.ok()) return error;
  }
  TFX_LAUNCH_THREADS(FinishLogits, n, stream, weights, batch, outputs.candidate_logits,
                     outputs.hits);
  return LastError();
}

}  // namespace tfx::core::gpu
