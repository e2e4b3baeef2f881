// SPDX-License-Identifier: Apache-2.0
//
// The rows of V of a batch's labels, on a GPU. A row is processed at the first position of its
// label. A label has no row if it is not a class, or if the slot of its row is invalid, or empty by
// slot_rows.

#ifndef TFX_LARGEOUT_CORE_GPU_FACTORED_ROWS_H_
#define TFX_LARGEOUT_CORE_GPU_FACTORED_ROWS_H_

#include <cstdint>

#include "core/factored_state.h"
#include "core/gpu/cuda_on_cpu.h"

struct CUstream_st;

namespace tfx::core::gpu {

// Records that a row moves from one slot to another. One thread per row; other rows may be moved at
// the same time.
template <typename T>
__device__ void MoveRow(const FactoredState<T>& state, int64_t row, int64_t from, int64_t to) {
  auto* counts = reinterpret_cast<unsigned long long*>(state.slot_rows);
  atomicAdd(counts + from, ~0ull);
  atomicAdd(counts + to, 1ull);
  state.row_slot[row] = static_cast<uint8_t>(to);
}

// Equal labels of a batch, linked in the order of their positions.
struct LabelLinks {
  int64_t* first;  // [B K]: first position of the label; -1: no row
  int64_t* next;   // [B K]: next position of the label; B K after the last
};

// Cost: (B K)^2 comparisons.
template <typename T>
void LinkLabels(CUstream_st* stream, const FactoredState<T>& state, const int64_t* labels,
                int64_t num_places, const LabelLinks& links);

// rows[first position of y] = V[y] transitions[slot of y], `rows` [B K, D]; other rows are not
// written.
template <typename T>
void CurrentRows(CUstream_st* stream, const FactoredState<T>& state, const int64_t* labels,
                 int64_t num_places, const LabelLinks& links, double* rows);

// V[y] = rows[first position of y], in the current coordinates. `stale`: only for stale rows.
template <typename T>
void WriteRows(CUstream_st* stream, const FactoredState<T>& state, const int64_t* labels,
               int64_t num_places, const LabelLinks& links, const double* rows, bool stale);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FACTORED_ROWS_H_
