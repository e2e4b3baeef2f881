// SPDX-License-Identifier: Apache-2.0
//
// A random choice of entries (i, c) of a softmax, made during a pass over all classes.
//
// With u_ic random in (0, 1], entry (i, c) is kept if p_ic > epsilon u_ic, so with probability
// min(1, p_ic / epsilon). With the weight max(p_ic, epsilon) it is an unbiased estimate of p_ic:
// this is importance sampling from the softmax itself. The expected number of entries per example
// is at most 1 / epsilon; with epsilon = 0 all are kept.
//
// p_ic > epsilon u_ic is equivalent to o_ic - log u_ic > log Z_i + log epsilon. A sum over some of
// the classes is a lower bound of Z_i: with it too many entries are kept at first, and the excess
// is dropped when Z_i is known. A shard of the classes likewise keeps too many by its log Z; the
// excess is dropped by log Z of all classes, logits and keys. So the choice depends only on the
// logits and on u, and u on a seed, i and c, but not on tiles or threads.

#ifndef TFX_LARGEOUT_CORE_KEPT_LOGITS_H_
#define TFX_LARGEOUT_CORE_KEPT_LOGITS_H_

#include <stdint.h>

namespace tfx::core {

struct KeptLogit {
  int32_t lane;
  int32_t row;
  float logit;
  float key;  // logit - log u
};

// The memory for the entries that a worker keeps.
struct KeptLogits {
  KeptLogit* entries;
  int64_t size;
  int64_t capacity;
  // Makes room for `more` entries, by thinning or with more memory.
  void (*make_room)(KeptLogits* kept, int64_t more);
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_KEPT_LOGITS_H_
