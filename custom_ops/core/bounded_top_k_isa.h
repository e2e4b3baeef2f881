// SPDX-License-Identifier: Apache-2.0
//
// The part of bounded_top_k that is compiled once per instruction set, and the plain structs that
// it shares with core/bounded_top_k.cc.

#ifndef TFX_LARGEOUT_CORE_BOUNDED_TOP_K_ISA_H_
#define TFX_LARGEOUT_CORE_BOUNDED_TOP_K_ISA_H_

#include <stdint.h>

#include "core/for_sets.h"
#include "core/logit_operands.h"
#include "core/top_k_heap.h"

namespace tfx::core {

constexpr int64_t kClassesOfBlock = 16;

// The rows of W as integers q_c, in N blocks of 16 classes, with error bounds. Row c is about
// scale_c q_c; error_c bounds the error for |h| = 1, of the rows and of rounding: see
// core/bounded_top_k.h.
struct BoundedRows {
  const int8_t* rows;                // [N, D, 16], 0 for no class
  const float* scales;               // [N, 16]
  const float* errors;               // [N, 16], at least 0
  const int32_t* classes = nullptr;  // [N, 16]: class of each row; -1: none. Null: row c is c
};

// L lists of classes, one after the other in the blocks of BoundedRows. List l is as close to h as
// <center_l, h> + offset_l - |(h, 1)| penalty_l.
struct RowLists {
  const float* centers;    // [ceil(L / 16), D, 16]
  const float* offsets;    // [ceil(L / 16), 16]
  const float* penalties;  // [ceil(L / 16), 16]
  const int32_t* ends;     // [L]: the block after the last one of a list
  int64_t num_lists;       // L
  int64_t num_blocks;      // N, of BoundedRows
};

struct BoundsPass {
  BoundedRows bounded;
  LogitRows layer;  // only b is read
  int64_t num_classes;
  int64_t k;
  const float* hidden;   // h: [B, D]
  int64_t batch;         // B
  const float* norms;    // [B]: |h|, rounded up
  float error_of_bias;   // for a bias of 1
  float smallest_error;  // error of numbers that are too small for a float
};

// A class, and the bounds of its logit.
struct BoundedClass {
  float lower, upper;
  int32_t id;  // the position of its row in BoundedRows
};

// The result of one worker for an example.
struct BoundsWorker {
  ScoredClass* heap;        // [k]: the largest lower bounds
  int64_t heap_size;        // at most k
  float threshold;          // the k-th largest lower bound, or -infinity
  BoundedClass* survivors;  // classes whose upper bounds were not below the threshold
  int64_t num_survivors;
};

struct BoundedTopKIsa {
  // Bounds the logits of the classes of blocks [begin, end). An unknown upper bound is NaN.
  // `workers` has one worker's results, per example.
  // REQUIRES: the lists of survivors have room for these classes.
  void (*bounds)(const BoundsPass& pass, int64_t begin, int64_t end, BoundsWorker* workers);

  // Sets `to`, which has room for whole blocks, to the closeness of lists to h: see RowLists.
  void (*closeness)(const RowLists& lists, int64_t width, const float* hidden, float length,
                    float* to);
};

TFX_FOR_SETS(extern const BoundedTopKIsa kBoundedTopK)

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_BOUNDED_TOP_K_ISA_H_
