// SPDX-License-Identifier: Apache-2.0
//
// The second part of a factored step: the state changes.

#include "core/gpu/factored_anchor.h"
#include "core/gpu/factored_rows.h"
#include "core/gpu/factored_step_arrays.h"
#include "core/gpu/factored_update.h"
#include "core/gpu/launch_each.h"
#include "core/largest_eigenvalue.h"

namespace tfx::core::gpu {
namespace {

// The rest of a number that decays by a share of it.
__device__ double Faded(double x, double share) { return x - share * x; }

// U' = beta U', in float64 and in the state. A thread for each number, as below.
template <typename T>
__global__ void __launch_bounds__(kThreads) StoreU(FactoredState<T> state, StepArrays arrays) {
  const int64_t at = OwnIndex();
  if (at >= state.width * state.width) return;
  arrays.u[at] = Faded(arrays.u[at], arrays.rates->decay);
  state.u[at] = static_cast<T>(arrays.u[at]);
}

// P' = P' / beta.
template <typename T>
__global__ void __launch_bounds__(kThreads) StoreP(FactoredState<T> state, StepArrays arrays) {
  const int64_t at = OwnIndex();
  const double decay = arrays.rates->decay;
  if (at >= state.width * state.width) return;
  state.u_inverse_transpose[at] = static_cast<T>(Faded(arrays.p[at], -decay / (1 - decay)));
}

// Q' = beta^2 (Q - eta (R H + (R H)^T)).
template <typename T>
__global__ void __launch_bounds__(kThreads) StoreGram(FactoredState<T> state, StepArrays arrays) {
  const int64_t at = OwnIndex(), width = state.width;
  if (at >= width * width) return;
  const double decay = arrays.rates->decay;
  const double sum = arrays.half[at] + arrays.half[at % width * width + at / width];
  const double gram = state.gram[at] - arrays.rates->eta * sum;
  state.gram[at] = static_cast<T>(Faded(gram, decay * (2 - decay)));
}

// w' and c'.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    StoreVectors(FactoredState<T> state, StepArrays arrays) {
  const int64_t d = OwnIndex(), width = state.width;
  if (d >= width) return;
  const double decay = arrays.rates->decay;
  const double shift = state.shift[d] - arrays.vectors[kShiftStep * width + d];
  const double row_sum = state.row_sum[d] - arrays.vectors[kRowSumStep * width + d];
  state.shift[d] = static_cast<T>(Faded(shift, decay));
  state.row_sum[d] = static_cast<T>(Faded(row_sum, decay));
}

// V'[y] = V[y] - eta P' x_y. A block for each place, as below.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    StepRows(FactoredStepArguments<T> step, StepArrays arrays) {
  const int64_t place = blockIdx.x, width = step.state.width;
  if (arrays.links.first[place] != place) return;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    double sum = 0;
    ForEachExample(step, arrays, place, [&](int64_t i, double g) {
      sum += g * arrays.directions[i * arrays.direction_stride + d];
    });
    arrays.rows[place * width + d] -= arrays.rates->eta * sum;
  }
}

// V'[y] = V[y] U' - eta beta x_y, in the coordinates of a new anchor; overwrites x_y.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    StepRowsThrough(FactoredStepArguments<T> step, StepArrays arrays, double learning_rate) {
  const int64_t place = blockIdx.x, width = step.state.width;
  if (arrays.links.first[place] != place) return;
  const double* row = arrays.rows + place * width;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    double sum = 0;
    for (int64_t e = 0; e < width; ++e) sum += row[e] * arrays.u[e * width + d];
    double* x = arrays.x + place * width + d;
    *x = sum - learning_rate * *x;
  }
}

}  // namespace

FactoredOutcome OutcomeOf(const FactoredVerdict& verdict) {
  if (verdict.is_safe != 0) return {false, 0};
  // Of 2 eta H^T G H, with the eta of the step before W decays.
  const double largest =
      LargestOfTridiagonal({verdict.diagonal, verdict.diagonal + verdict.num_lanczos},
                           {verdict.beside, verdict.beside + verdict.num_lanczos});
  const double decay = verdict.learning_rate * verdict.weight_decay;
  const double product = (1 - decay) * largest;
  if (product <= 2 - decay) return {false, 0};
  return {true, product / (2 * verdict.learning_rate)};
}

template <typename T>
Error EndFactoredUpdate(CUstream_st* stream, const FactoredStepArguments<T>& step,
                        const FactoredVerdict& verdict, void* memory) {
  const FactoredState<T>& state = step.state;
  const int64_t width = state.width, square = width * width;
  const int64_t num_places = step.batch.batch * step.batch.num_labels;
  Scratch scratch(memory);
  const StepArrays arrays(step, &scratch);
  const AnchorScratch anchor(width, &scratch);
  const bool is_safe = verdict.is_safe != 0;

  ForgetErrors();
  TFX_LAUNCH_THREADS(StoreU<T>, square, stream, state, arrays);
  TFX_LAUNCH_THREADS(StoreGram<T>, square, stream, state, arrays);
  TFX_LAUNCH_THREADS(StoreVectors<T>, width, stream, state, arrays);
  if (is_safe) {
    TFX_LAUNCH_THREADS(StoreP<T>, square, stream, state, arrays);
    TFX_LAUNCH_BLOCKS(StepRows<T>, num_places, stream, step, arrays);
    WriteRows(stream, state, step.batch.labels, num_places, arrays.links, arrays.rows, false);
  } else {
    TFX_LAUNCH_BLOCKS(StepRowsThrough<T>, num_places, stream, step, arrays, verdict.learning_rate);
  }
  if (!is_safe || verdict.needs_anchor != 0) {
    const Error error = SetAnchor(stream, state, arrays.u, anchor);
    if (!error.ok()) return error.AfterChanges();
  }
  if (!is_safe) {
    WriteRows(stream, state, step.batch.labels, num_places, arrays.links, arrays.x, false);
  }
  return LastError().AfterChanges();
}

template Error EndFactoredUpdate(CUstream_st*, const FactoredStepArguments<float>&,
                                 const FactoredVerdict&, void*);
template Error EndFactoredUpdate(CUstream_st*, const FactoredStepArguments<double>&,
                                 const FactoredVerdict&, void*);

}  // namespace tfx::core::gpu
