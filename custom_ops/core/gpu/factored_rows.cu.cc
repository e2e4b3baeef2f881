// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/factored_rows.h"

#include "core/gpu/launch_each.h"

namespace tfx::core::gpu {
namespace {

template <typename T>
__device__ bool HasRow(const FactoredState<T>& state, int64_t label) {
  const int64_t current = *state.current_slot;
  if (current < 0 || current >= state.num_slots) return false;
  if (label < 0 || label >= state.num_classes) return false;
  const int64_t slot = state.row_slot[label];
  return slot < state.num_slots && state.slot_rows[slot] > 0;
}

// A warp for each place.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    FindEqualLabels(FactoredState<T> state, const int64_t* labels, int64_t n, LabelLinks links) {
  const int64_t place = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (place >= n) return;
  const int64_t label = labels[place];
  const bool has_row = HasRow(state, label);
  int64_t first = place, next = n;
  for (int64_t other = threadIdx.x % kWarpSize; has_row && other < n; other += kWarpSize) {
    if (labels[other] != label) continue;
    if (other < first) first = other;
    if (other > place && other < next) next = other;
  }
  first = OfWarp(first, Min());
  next = OfWarp(next, Min());
  if (threadIdx.x % kWarpSize != 0) return;
  links.first[place] = has_row ? first : -1;
  links.next[place] = next;
}

// A block for each place.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    CurrentRow(FactoredState<T> state, const int64_t* labels, LabelLinks links, double* rows) {
  const int64_t place = blockIdx.x, width = state.width;
  if (links.first[place] != place) return;
  const T* row = state.Row(labels[place]);
  const int64_t slot = state.row_slot[labels[place]];
  const T* transition = state.Transition(slot);
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    double sum = row[d];
    if (slot != *state.current_slot) {
      sum = 0;
      for (int64_t j = 0; j < width; ++j) {
        sum += static_cast<double>(row[j]) * transition[j * width + d];
      }
    }
    rows[place * width + d] = sum;
  }
}

// A block for each place.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    WriteRow(FactoredState<T> state, const int64_t* labels, LabelLinks links, const double* rows,
             bool stale) {
  const int64_t place = blockIdx.x, width = state.width;
  if (links.first[place] != place) return;
  const int64_t id = labels[place], current = *state.current_slot;
  const int64_t slot = state.row_slot[id];
  __syncthreads();  // all threads have the slot before it changes
  if (stale && slot == current) return;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    state.Row(id)[d] = static_cast<T>(rows[place * width + d]);
  }
  if (threadIdx.x != 0 || slot == current) return;
  MoveRow(state, id, slot, current);
}

}  // namespace

template <typename T>
void LinkLabels(CUstream_st* stream, const FactoredState<T>& state, const int64_t* labels,
                int64_t num_places, const LabelLinks& links) {
  TFX_LAUNCH_BLOCKS(FindEqualLabels<T>, BlocksOf(num_places, kWarps), stream, state, labels,
                    num_places, links);
}

template <typename T>
void CurrentRows(CUstream_st* stream, const FactoredState<T>& state, const int64_t* labels,
                 int64_t num_places, const LabelLinks& links, double* rows) {
  TFX_LAUNCH_BLOCKS(CurrentRow<T>, num_places, stream, state, labels, links, rows);
}

template <typename T>
void WriteRows(CUstream_st* stream, const FactoredState<T>& state, const int64_t* labels,
               int64_t num_places, const LabelLinks& links, const double* rows, bool stale) {
  TFX_LAUNCH_BLOCKS(WriteRow<T>, num_places, stream, state, labels, links, rows, stale);
}

#define TFX_INSTANTIATE(T)                                                                  \
  template void LinkLabels(CUstream_st*, const FactoredState<T>&, const int64_t*, int64_t,  \
                           const LabelLinks&);                                              \
  template void CurrentRows(CUstream_st*, const FactoredState<T>&, const int64_t*, int64_t, \
                            const LabelLinks&, double*);                                    \
  template void WriteRows(CUstream_st*, const FactoredState<T>&, const int64_t*, int64_t,   \
                          const LabelLinks&, const double*, bool)
TFX_INSTANTIATE(float);
TFX_INSTANTIATE(double);
#undef TFX_INSTANTIATE

}  // namespace tfx::core::gpu
