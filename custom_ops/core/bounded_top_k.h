// SPDX-License-Identifier: Apache-2.0
//
// The best k of all classes for a few examples, reading a quarter of W: filter and refine. A row
// w_c is approximated by integers q_c and a scale s_c. With r_c = w_c - s_c q_c and a_c = s_c <q_c,
// h> + b_c, the Cauchy-Schwarz inequality gives
//
//   |o_c - a_c| <= e_c = |r_c| |h| + rounding errors of o_c and a_c
//
// for the logit o_c as StreamedLogits computes it, in float. With t the k-th largest a_c - e_c, no
// class with a_c + e_c < t is among the best k. For the others, logits are computed from W.

#ifndef TFX_LARGEOUT_CORE_BOUNDED_TOP_K_H_
#define TFX_LARGEOUT_CORE_BOUNDED_TOP_K_H_

#include "core/bounded_logits.h"

namespace tfx::core {

// Sets the best k with the ids and the bits of StreamedLogits. StreamedLogits is called if bounds
// don't help or don't hold: for more than 8 examples; for k above C / 32; if h has a NaN or is
// longer than 2^50; if more than an eighth of the classes can't be ruled out; and if a logit is out
// of its bounds, as for another W.
//
// error_c must be at least
//
//   (1 + g) |r_c| + 2 g |w_c|, with g = n u / (1 - n u), n = D + 8 and u = 2^-24,
//
// rounded up by a factor of 1 + 2^-20, plus 2^-110; and infinite where |w_c| > 2^70. n u bounds the
// relative error of a sum of products in which a term is rounded n times. The terms added to |h|
// and to the bounds cover numbers too small for a float, which the processor may flush to 0.
//
// Cost: D + 8 bytes per class are read, and W for classes that can't be ruled out; B C D
// multiplications. Memory: 6 B C bytes for classes not ruled out, for any number of workers, and 60
// KiB B per worker.
//
// REQUIRES: as StreamedLogits; the classes are those of a whole layer; there are no labels, and
// nothing is rounded or kept.
void BoundedTopK(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                 const Execution& execution, const BoundedTopKOutputs& outputs);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_BOUNDED_TOP_K_H_
