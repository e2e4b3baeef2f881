// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_GPU_FACTORED_SLOTS_H_
#define TFX_LARGEOUT_CORE_GPU_FACTORED_SLOTS_H_

#include <cstdint>

#include "core/factored_state.h"
#include "core/gpu/cuda_on_cpu.h"

namespace tfx::core::gpu {

// Notes that a row goes from one slot to another. One thread for a row; those of other rows may do
// so at the same time.
template <typename T>
__device__ void MoveRow(const FactoredState<T>& state, int64_t row, int64_t from, int64_t to) {
  auto* counts = reinterpret_cast<unsigned long long*>(state.slot_rows);
  atomicAdd(counts + from, ~0ull);
  atomicAdd(counts + to, 1ull);
  state.row_slot[row] = static_cast<uint8_t>(to);
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FACTORED_SLOTS_H_
