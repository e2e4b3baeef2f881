// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/factored_checks.h"

#include "core/gpu/launch_each.h"

namespace tfx::core::gpu {
namespace {

// The first fault is kept, in any order of threads.
__device__ void Refuse(FactoredRefusal what, int64_t position, FactoredVerdict* verdict) {
  atomicMin(&verdict->refusal, static_cast<unsigned long long>(what) << 48 |
                                   static_cast<unsigned long long>(position));
}

// Checks the rates, and the slots as far as possible without reading rows. One thread.
template <typename T>
__global__ void BeginStep(FactoredState<T> state, const T* learning_rate, const T* weight_decay,
                          FactoredVerdict* verdict, StepRates* rates) {
  verdict->refusal = static_cast<unsigned long long>(FactoredRefusal::kNone) << 48;
  verdict->is_safe = 1;
  verdict->needs_anchor = 0;
  verdict->num_lanczos = 0;
  const double eta = *learning_rate, decay = *weight_decay;
  verdict->learning_rate = eta;
  verdict->weight_decay = decay;
  rates->decay = eta * decay;
  rates->eta = eta / (1 - eta * decay);
  if (!(eta >= 0) || !isfinite(eta)) Refuse(FactoredRefusal::kLearningRate, 0, verdict);
  if (!(decay >= 0) || !(eta * decay < 1)) Refuse(FactoredRefusal::kWeightDecay, 0, verdict);
  const int64_t current = *state.current_slot;
  if (current < 0 || current >= state.num_slots) Refuse(FactoredRefusal::kCurrentSlot, 0, verdict);
  int64_t sum = 0;
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    const int64_t rows = state.slot_rows[slot];
    if (rows < 0 || rows > state.num_classes) Refuse(FactoredRefusal::kSlotRows, slot, verdict);
    sum += rows;
  }
  if (sum != state.num_classes) Refuse(FactoredRefusal::kSumOfSlotRows, 0, verdict);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    CheckFinite(const T* numbers, int64_t n, FactoredRefusal what, FactoredVerdict* verdict) {
  if (OwnIndex() < n && !isfinite(numbers[OwnIndex()])) Refuse(what, OwnIndex(), verdict);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    CheckLabels(FactoredState<T> state, const int64_t* labels, int64_t n,
                FactoredVerdict* verdict) {
  const int64_t place = OwnIndex();
  if (place >= n || labels[place] == -1) return;
  if (labels[place] < 0 || labels[place] >= state.num_classes) {
    Refuse(FactoredRefusal::kLabels, place, verdict);
    return;
  }
  const int64_t slot = state.row_slot[labels[place]];
  if (slot >= state.num_slots) {
    Refuse(FactoredRefusal::kRowSlot, place, verdict);
  } else if (state.slot_rows[slot] <= 0) {
    Refuse(FactoredRefusal::kRowsOfSlot, place, verdict);
  }
}

}  // namespace

template <typename T>
void CheckFactoredStep(CUstream_st* stream, const FactoredState<T>& state,
                       const FactoredBatch<T>& batch, const FactoredGradients<T>& gradients,
                       const T* learning_rate, const T* weight_decay, FactoredVerdict* verdict,
                       StepRates* rates) {
  TFX_LAUNCH(BeginStep<T>, dim3(1), dim3(1), 0, stream, state, learning_rate, weight_decay, verdict,
             rates);
  const int64_t examples = batch.batch, by_width = examples * state.width;
  const int64_t num_places = examples * batch.num_labels;
  TFX_LAUNCH_THREADS(CheckLabels<T>, num_places, stream, state, batch.labels, num_places, verdict);
  const struct {
    const T* numbers;
    int64_t n;
    FactoredRefusal what;
  } arrays[] = {{batch.hidden, by_width, FactoredRefusal::kHidden},
                {gradients.gram_hidden, by_width, FactoredRefusal::kGramHidden},
                {gradients.u_hidden, by_width, FactoredRefusal::kUHidden},
                {gradients.g_target, num_places, FactoredRefusal::kGTarget},
                {gradients.g_squares, examples, FactoredRefusal::kGSquares},
                {gradients.g_sum, examples, FactoredRefusal::kGSum}};
  for (const auto& array : arrays) {
    TFX_LAUNCH_THREADS(CheckFinite<T>, array.n, stream, array.numbers, array.n, array.what,
                       verdict);
  }
}

#define TFX_INSTANTIATE(T)                                                                        \
  template void CheckFactoredStep(CUstream_st*, const FactoredState<T>&, const FactoredBatch<T>&, \
                                  const FactoredGradients<T>&, const T*, const T*,                \
                                  FactoredVerdict*, StepRates*)
TFX_INSTANTIATE(float);
TFX_INSTANTIATE(double);
#undef TFX_INSTANTIATE

}  // namespace tfx::core::gpu
