// SPDX-License-Identifier: Apache-2.0
//
// A random choice of the entries (i, c) of a softmax, made while a pass over all classes runs.
//
// With u_ic random in (0, 1], entry (i, c) is kept if p_ic > epsilon u_ic, so with probability
// min(1, p_ic / epsilon). With the weight max(p_ic, epsilon) it then stands for p_ic without bias:
// this is importance sampling from the softmax itself. At most 1 / epsilon entries of an example
// are expected; with epsilon = 0 all are kept.
//
// p_ic > epsilon u_ic says o_ic - log u_ic > log Z_i + log epsilon. A sum over some of the classes
// is a lower bound of Z_i: what is kept by it, before Z_i is known, is a superset that is thinned
// out in the end. What a shard of the classes keeps by its own log Z is such a superset too:
// whoever knows the log Z of all thins it out by logits and keys. So the choice depends on the
// logits and on u alone, and u on a seed, i and c: neither on tiles nor on threads.

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

// Where a worker puts what it keeps.
struct KeptLogits {
  KeptLogit* entries;
  int64_t size;
  int64_t capacity;
  // Makes room for `more` entries, by thinning or with more memory.
  void (*make_room)(KeptLogits* kept, int64_t more);
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_KEPT_LOGITS_H_
