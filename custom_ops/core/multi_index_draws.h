// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_MULTI_INDEX_DRAWS_H_
#define TFX_LARGEOUT_CORE_MULTI_INDEX_DRAWS_H_

#include <cstdint>

#include "core/execution.h"

namespace tfx::core {

// Classes by their pair of code words (k1, k2), from Q words each. A pair is the number k1 Q + k2.
struct PairLists {
  const int32_t* codes;    // [num_classes], the pair of each class
  const int32_t* entries;  // [num_classes], the classes by pair
  const int32_t* starts;   // [Q^2 + 1], the start of each pair in entries
  const int64_t* sums;     // [num_classes + 1], cumulative weights before each entry
  int64_t num_classes;
  int64_t num_words;  // Q
};

// Returns whether starts rise from 0 to num_classes, and a pair's sums rise if it has classes.
bool AreLists(const PairLists& lists);

// Draws classes of each example, independently, by q(c) = w_c exp(first[k1] + second[k2]) / Z,
// where w_c is the weight of class c, and (k1, k2) its code.
//
// By inverse cumulative sums: k1 from P(k1) ~ exp(first[k1]) sum_k2 N[k1, k2] exp(second[k2]),
// where N is the sum of the weights of a pair's classes; then k2; then a class of the pair. The
// draws of an example are ordered by k1, so that the sums for k2 are computed once per k1.
//
// Cost: O(batch (Q^2 + num_draws log(Q C))). Memory: 16 Q^2 bytes, and O(Q + num_draws) per worker.
struct MultiIndexDraws {
  const double* first;    // [batch, Q]
  const double* second;   // [batch, Q]
  const double* uniform;  // [batch, num_draws, 3], in [0, 1)
  int64_t batch;
  int64_t num_draws;

  // Sets ids [batch, num_draws] and log_probability, log q, likewise. If Z is not a number above 0,
  // ids are -1 and log_probability 0. Returns false if a list does not have the classes whose code
  // is its pair; the results are undefined then.
  //
  // REQUIRES: AreLists(lists), Q <= 2^15.
  bool Run(const PairLists& lists, const Execution& execution, int64_t* ids,
           double* log_probability) const;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_MULTI_INDEX_DRAWS_H_
