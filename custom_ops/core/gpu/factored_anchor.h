// SPDX-License-Identifier: Apache-2.0
//
// core/factored_coordinates.h on a GPU: a new anchor.

#ifndef TFX_LARGEOUT_CORE_GPU_FACTORED_ANCHOR_H_
#define TFX_LARGEOUT_CORE_GPU_FACTORED_ANCHOR_H_

#include <cstdint>

#include "core/factored_state.h"
#include "core/gpu/error.h"
#include "core/gpu/scratch.h"

struct CUstream_st;

namespace tfx::core::gpu {

// The memory that SetAnchor needs besides the state.
struct AnchorScratch {
  AnchorScratch(int64_t width, Scratch* scratch);

  double *transition, *product;  // [D, D]
  double* rows;                  // a row per block of threads
  int64_t* slots;                // [3]: see factored_anchor.cu.cc
};

// Resets U = P = I; W is then the previous W with `u` [D, D] instead of U.
//
// T[e] <- T[e] u for every slot e; the slot with the fewest rows, except the current one, becomes
// the current one, with T = I. Its remaining rows are first converted to the old coordinates.
//
// Cost: O(8 D^3); O(C), and O(D^2) per row of that slot, if there is no empty one. Runs on a
// stream. Returns an error.
template <typename T>
Error SetAnchor(CUstream_st* stream, const FactoredState<T>& state, const double* u,
                const AnchorScratch& scratch);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FACTORED_ANCHOR_H_
