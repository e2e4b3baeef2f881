// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/factored_anchor.h"

#include <algorithm>

#include "core/gpu/converted_copies.h"
#include "core/gpu/factored_rows.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/products.h"

namespace tfx::core::gpu {
namespace {

constexpr int64_t kMostBlocks = 256;  // that empty a slot

enum { kBefore, kNext, kIsTaken, kNumSlots };  // the current slots, and whether the next has rows

// One thread.
template <typename T>
__global__ void ChooseSlot(FactoredState<T> state, int64_t* slots) {
  int64_t best = -1;
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    if (slot == *state.current_slot) continue;
    if (best < 0 || state.slot_rows[slot] < state.slot_rows[best]) best = slot;
  }
  slots[kBefore] = *state.current_slot;
  slots[kNext] = best;
  slots[kIsTaken] = state.slot_rows[best] > 0 ? 1 : 0;
}

// V[r] <- V[r] T[next] for the rows of the next slot, which go to the current one. A block for each
// run of kThreads rows; `rows` has room for one a block.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmptySlot(FactoredState<T> state, const int64_t* slots, double* rows) {
  TFX_SHARED_MEMORY(memory);
  auto* is_there = reinterpret_cast<unsigned char*>(memory);  // [kThreads]
  if (slots[kIsTaken] == 0) return;
  const int64_t width = state.width, next = slots[kNext];
  const T* transition = state.Transition(next);
  double* before = rows + blockIdx.x * width;
  for (int64_t begin = int64_t{blockIdx.x} * kThreads; begin < state.num_classes;
       begin += int64_t{gridDim.x} * kThreads) {
    const int64_t own = begin + threadIdx.x;
    is_there[threadIdx.x] = own < state.num_classes && state.row_slot[own] == next ? 1 : 0;
    __syncthreads();
    for (int i = 0; i < kThreads; ++i) {
      if (is_there[i] == 0) continue;
      T* row = state.Row(begin + i);
      for (int64_t d = threadIdx.x; d < width; d += kThreads) before[d] = row[d];
      __syncthreads();
      for (int64_t d = threadIdx.x; d < width; d += kThreads) {
        double sum = 0;
        for (int64_t j = 0; j < width; ++j) sum += before[j] * transition[j * width + d];
        row[d] = static_cast<T>(sum);
      }
      if (threadIdx.x == 0) MoveRow(state, begin + i, next, slots[kBefore]);
      __syncthreads();
    }
    __syncthreads();  // all have read is_there
  }
}

// T[slot] becomes I for the next slot, u for the one before, T[slot] u for others.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SetTransition(FactoredState<T> state, const int64_t* slots, int64_t slot, const double* u,
                  const double* product) {
  const int64_t at = OwnIndex(), width = state.width;
  if (at >= width * width) return;
  const double unit = at / width == at % width ? 1 : 0;
  const double value = slot == slots[kNext] ? unit : slot == slots[kBefore] ? u[at] : product[at];
  state.Transition(slot)[at] = static_cast<T>(value);
}

// U = P = I, and the next slot is the current one.
template <typename T>
__global__ void __launch_bounds__(kThreads) Restart(FactoredState<T> state, const int64_t* slots) {
  const int64_t at = OwnIndex(), width = state.width;
  if (at == 0) *state.current_slot = slots[kNext];
  if (at >= width * width) return;
  const T unit = at / width == at % width ? 1 : 0;
  state.u[at] = unit;
  state.u_inverse_transpose[at] = unit;
}

}  // namespace

AnchorScratch::AnchorScratch(int64_t width, Scratch* scratch)
    : transition(scratch->Take<double>(width * width)),
      product(scratch->Take<double>(width * width)),
      rows(scratch->Take<double>(kMostBlocks * width)),
      slots(scratch->Take<int64_t>(kNumSlots)) {}

template <typename T>
Error SetAnchor(CUstream_st* stream, const FactoredState<T>& state, const double* u,
                const AnchorScratch& scratch) {
  const int64_t width = state.width, size = width * width;
  TFX_LAUNCH(ChooseSlot<T>, dim3(1), dim3(1), 0, stream, state, scratch.slots);
  const int64_t blocks = std::min(kMostBlocks, BlocksOf(state.num_classes, kThreads));
  TFX_LAUNCH(EmptySlot<T>, Grid(blocks), dim3(kThreads), kThreads, stream, state, scratch.slots,
             scratch.rows);
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    Copy(stream, state.Transition(slot), size, scratch.transition);
    Error error = AddProduct(stream, {scratch.transition, width}, {u, width}, width,
                             {scratch.product, width, width, width});
    if (!error.ok()) return error;
    TFX_LAUNCH_THREADS(SetTransition<T>, size, stream, state, scratch.slots, slot, u,
                       scratch.product);
  }
  TFX_LAUNCH_THREADS(Restart<T>, size, stream, state, scratch.slots);
  return LastError();
}

template Error SetAnchor(CUstream_st*, const FactoredState<float>&, const double*,
                         const AnchorScratch&);
template Error SetAnchor(CUstream_st*, const FactoredState<double>&, const double*,
                         const AnchorScratch&);

}  // namespace tfx::core::gpu
