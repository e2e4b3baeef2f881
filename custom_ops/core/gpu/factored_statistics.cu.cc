// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/factored_statistics.h"

#include "core/gpu/block_reduction.h"
#include "core/gpu/converted_copies.h"
#include "core/gpu/factored_rows.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/products.h"
#include "core/gpu/scratch.h"

namespace tfx::core::gpu {
namespace {

struct Arrays {
  Arrays(int64_t width, int64_t batch, int64_t num_places, Scratch* scratch)
      : links{scratch->Take<int64_t>(num_places), scratch->Take<int64_t>(num_places)},
        rows(scratch->Take<double>(num_places * width)),
        hidden(scratch->Take<double>(batch * width)),
        matrix(scratch->Take<double>(width * width)),
        gram_hidden(scratch->Take<double>(batch * width)),
        u_hidden(scratch->Take<double>(batch * width)) {}

  LabelLinks links;
  double *rows, *hidden, *matrix, *gram_hidden, *u_hidden;
};

// q = h . Q h, s = c . h, a = V[y] T . U h + w . h. A block for each example.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    StatisticsOfExample(FactoredState<T> state, FactoredBatch<T> batch, Arrays arrays,
                        FactoredStatisticsOutputs<T> outputs) {
  TFX_SHARED_MEMORY(memory);
  const int64_t example = blockIdx.x, width = state.width;
  const double* h = arrays.hidden + example * width;
  const double* gram_hidden = arrays.gram_hidden + example * width;
  const double* u_hidden = arrays.u_hidden + example * width;
  const double square = Dot(h, gram_hidden, width, memory);
  const double sum = Dot(h, state.row_sum, width, memory);
  const double shift = Dot(h, state.shift, width, memory);
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    outputs.gram_hidden[example * width + d] = static_cast<T>(gram_hidden[d]);
    outputs.u_hidden[example * width + d] = static_cast<T>(u_hidden[d]);
  }
  if (threadIdx.x == 0) {
    outputs.sum_of_squares[example] = static_cast<T>(square);
    outputs.sum[example] = static_cast<T>(sum);
  }
  for (int64_t k = 0; k < batch.num_labels; ++k) {
    const int64_t place = example * batch.num_labels + k, first = arrays.links.first[place];
    double logit = batch.labels[place] == -1 ? 0 : NAN;
    if (first >= 0) logit = Dot(u_hidden, arrays.rows + first * width, width, memory) + shift;
    if (threadIdx.x == 0) outputs.target_logits[place] = static_cast<T>(logit);
  }
}

}  // namespace

template <typename T>
int64_t FactoredStatisticsScratchBytes(const FactoredState<T>& state,
                                       const FactoredBatch<T>& batch) {
  Scratch scratch(nullptr);
  Arrays(state.width, batch.batch, batch.batch * batch.num_labels, &scratch);
  return scratch.bytes();
}

template <typename T>
Error FactoredStatistics(CUstream_st* stream, const FactoredState<T>& state,
                         const FactoredBatch<T>& batch, bool update_rows, void* memory,
                         const FactoredStatisticsOutputs<T>& outputs) {
  const int64_t width = state.width, examples = batch.batch;
  const int64_t num_places = examples * batch.num_labels;
  Scratch scratch(memory);
  const Arrays arrays(width, examples, num_places, &scratch);
  ForgetErrors();
  LinkLabels(stream, state, batch.labels, num_places, arrays.links);
  CurrentRows(stream, state, batch.labels, num_places, arrays.links, arrays.rows);
  Copy(stream, batch.hidden, examples * width, arrays.hidden);
  Copy(stream, state.gram, width * width, arrays.matrix);
  const Factor64 hidden = {arrays.hidden, width};
  Error error = AddProduct(stream, hidden, {arrays.matrix, width}, width,
                           {arrays.gram_hidden, width, examples, width});
  if (!error.ok()) return error;
  Copy(stream, state.u, width * width, arrays.matrix);
  error = AddProduct(stream, hidden, {arrays.matrix, width, true}, width,
                     {arrays.u_hidden, width, examples, width});
  if (!error.ok()) return error;
  if (examples > 0) {
    TFX_LAUNCH(StatisticsOfExample<T>, Grid(examples), dim3(kThreads), kWarps * sizeof(double),
               stream, state, batch, arrays, outputs);
  }
  if (update_rows) {
    WriteRows(stream, state, batch.labels, num_places, arrays.links, arrays.rows, true);
  }
  return LastError();
}

#define TFX_INSTANTIATE(T)                                                  \
  template int64_t FactoredStatisticsScratchBytes(const FactoredState<T>&,  \
                                                  const FactoredBatch<T>&); \
  template Error FactoredStatistics(CUstream_st*, const FactoredState<T>&,  \
                                    const FactoredBatch<T>&, bool, void*,   \
                                    const FactoredStatisticsOutputs<T>&)
TFX_INSTANTIATE(float);
TFX_INSTANTIATE(double);
#undef TFX_INSTANTIATE

}  // namespace tfx::core::gpu
