// SPDX-License-Identifier: Apache-2.0
//
// Loops over single rows of a weight matrix, compiled once per instruction set. Rows are float or
// bfloat16; all arithmetic is in float.

#ifndef TFX_LARGEOUT_CORE_ROW_KERNELS_ISA_H_
#define TFX_LARGEOUT_CORE_ROW_KERNELS_ISA_H_

#include <stdint.h>

#include "core/for_sets.h"

namespace tfx::core {

enum class RowMethod { kSgd, kMomentum, kNesterov, kAdagrad, kAdam };

// The rounding of bfloat16 weights: to the nearest number; up or down at random, so that the mean
// is exact; or to the nearest, with the error stored and added to the weight in the next step.
enum class Rounding { kNearest, kStochastic, kCompensated };

// The update of each row in a step.
struct RowStep {
  RowMethod method;
  float learning_rate;
  float kept;       // 1 - learning_rate * weight_decay
  float clip_norm;  // infinity: none
  float momentum;   // also Adam's beta_1
  float beta_2;
  float rest_1;  // 1 - beta_1
  float rest_2;  // 1 - beta_2
  float epsilon;
  bool unit_rows = false;         // rows are kept at norm 1
  bool row_wise = false;          // Adagrad's accumulator and Adam's v: per row, by mean g^2
  bool bfloat16_moments = false;  // momentum, m and v with one number per weight; rounded at random
  Rounding rounding = Rounding::kNearest;  // of bfloat16 weights
};

// One row and its slots: sgd: momentum or none; adagrad: accumulator; adam: m and v. Row-wise slots
// are in of_row instead.
struct RowPlace {
  void* weights;
  void* slots[2];              // float; moments maybe bfloat16
  float* of_row = nullptr;     // one number
  uint16_t* errors = nullptr;  // bfloat16, for Rounding::kCompensated
  uint64_t key = 0;            // of the row's random bits in this step
};

// A term of a sum over positions of a class: the gradient of its logit for an example.
struct ClassTerm {
  uint32_t class_id;
  uint32_t example;
  float gradient;
};

// A class and an example.
struct ClassExample {
  uint32_t class_id;
  uint32_t example;
};

struct RowKernels {
  // Changes a row of n weights. `rate` is the learning rate, corrected for the age of the row.
  void (*step)(const RowStep& step, float rate, const RowPlace& row, bool is_bfloat16,
               const float* gradient, int64_t n);

  // out[j] = <row ids[j], h> + bias[ids[j]], or 0 for a negative id. `bias` may be null.
  void (*logits)(const void* kernel, const void* bias, bool is_bfloat16, int64_t width,
                 const int64_t* ids, int64_t n, const float* h, float* out);

  // out[j] = <row c, hidden_i> + bias[c] for pairs[j] = (c, i), with the bits of `logits`. `bias`
  // may be null.
  void (*pair_logits)(const void* kernel, const void* bias, bool is_bfloat16, int64_t width,
                      const ClassExample* pairs, int64_t n, const float* hidden, float* out);

  // result = sum of g hidden_i over n terms (c, i, g).
  void (*sum_examples)(const ClassTerm* terms, int64_t n, const float* hidden, int64_t width,
                       float* result);

  // hidden_gradient_i += sum of g times row c, over n terms (c, i, g). It is fast if terms of an
  // example are neighbours.
  void (*add_rows)(const ClassTerm* terms, int64_t n, const void* kernel, bool is_bfloat16,
                   int64_t width, float* hidden_gradient);

  void (*widen)(const uint16_t* from, int64_t n, float* to);

  // The position of the first of n ids that is not in [lowest, end), or n.
  int64_t (*find_outside)(const int64_t* ids, int64_t n, int64_t lowest, int64_t end);
};

TFX_FOR_SETS(extern const RowKernels kRowKernels)

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_ROW_KERNELS_ISA_H_
