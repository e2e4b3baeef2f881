// SPDX-License-Identifier: Apache-2.0
//
// The part of softmax_update that is compiled once per instruction set, and the plain structs that
// it shares with core/softmax_update.cc.

#ifndef TFX_LARGEOUT_CORE_SOFTMAX_UPDATE_ISA_H_
#define TFX_LARGEOUT_CORE_SOFTMAX_UPDATE_ISA_H_

#include <stdint.h>

#include "core/for_sets.h"
#include "core/logit_operands.h"

namespace tfx::core {

// The inputs of all workers. Arrays "by lane" have num_panels * panel_lanes entries.
struct SoftmaxUpdatePass {
  LogitRows layer;
  const HiddenPanel* panels;  // each of panel_lanes
  int64_t num_panels;
  const float* columns;    // h: see pack_columns
  const float* logsumexp;  // by lane
  const float* scales;     // by lane: a = dL/d log Z; 0 without an example
  const float* offsets;    // by lane: added for each class; 0 without an example
};

// The gradient of a label, dL/do of the target logit.
struct LabelTerm {
  uint32_t class_id;
  uint32_t lane;
  float gradient;
};

// Gradients of a block of classes: of its rows of W, [rows_of_block, padded_width] or null, and of
// b, [rows_of_block], which are set; and of h, [padded_lanes, padded_width], which is added to.
struct SoftmaxBlockGradients {
  float* kernel;
  float* bias;
  float* hidden;
};

struct SoftmaxUpdateIsa {
  int32_t panel_lanes;

  // Rows of W that are processed at a time.
  int64_t (*rows_of_block)(int64_t width);
  int64_t (*padded_width)(int64_t width);
  int64_t (*padded_lanes)(int64_t num_panels);

  // Floats that `block` needs as scratch.
  int64_t (*scratch_size)(int64_t width);

  // As StreamedLogitsIsa.
  void (*pack_panel)(const HiddenPanel& panel, int64_t width, bool rounded, float* to);

  // Fills `to`, with room for [lanes, padded_width] floats, with h as the right factor of a product
  // over examples, `rounded` or not.
  void (*pack_columns)(const float* hidden, int64_t batch, int64_t width, bool rounded, float* to);

  // dL/do_ic = a_i exp(o_ic - log Z_i) + the offset of i + the terms of (i, c), and its products
  // with h and W, for classes [first, first + num_rows). Terms belong to these classes.
  // REQUIRES: 0 < num_rows <= rows_of_block.
  void (*block)(const SoftmaxUpdatePass& pass, int64_t first, int64_t num_rows,
                const LabelTerm* terms, const LabelTerm* terms_end, float* scratch,
                const SoftmaxBlockGradients& gradients);
};

TFX_FOR_BFLOAT16_SETS(extern const SoftmaxUpdateIsa kSoftmaxUpdate)

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_SOFTMAX_UPDATE_ISA_H_
