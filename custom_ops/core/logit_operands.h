// SPDX-License-Identifier: Apache-2.0
//
// The operands of logits o = W h + b, for passes over all classes: plain structs shared by the
// parts compiled once per instruction set and the others.

#ifndef TFX_LARGEOUT_CORE_LOGIT_OPERANDS_H_
#define TFX_LARGEOUT_CORE_LOGIT_OPERANDS_H_

#include <stdint.h>

namespace tfx::core {

struct LogitRows {
  const void* kernel;  // W: [C, D], float or bfloat16
  const void* bias;    // b: [C] of the same type, or null
  bool is_bfloat16;
  bool rounds;    // W and h to bfloat16, for products that are summed in float
  int64_t width;  // D
};

// Examples are the lanes of vectors: a panel holds some of them, transposed.
struct HiddenPanel {
  const void* hidden;        // [D, lanes] floats, or [depth, lanes] of core/product_tile.h
  const float* hidden_rows;  // [examples, D]: the same, neither transposed nor rounded
  int64_t first_lane;        // index of lane 0 in arrays by lane; also its example
  int32_t lanes;             // a multiple of the vector length
  int32_t examples;          // lanes in use
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_LOGIT_OPERANDS_H_
