// SPDX-License-Identifier: Apache-2.0
//
// Arrays that a factored step on a GPU keeps from its first part to its second. Names are those of
// docs/papers/exact_gradient.md, with eta / beta instead of eta, where beta = 1 - eta lambda: W' =
// beta (W - eta / beta dL/dW).

#ifndef TFX_LARGEOUT_CORE_GPU_FACTORED_STEP_ARRAYS_H_
#define TFX_LARGEOUT_CORE_GPU_FACTORED_STEP_ARRAYS_H_

#include <algorithm>
#include <cstdint>

#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/elimination.h"
#include "core/gpu/factored_anchor.h"
#include "core/gpu/factored_rows.h"
#include "core/gpu/factored_update.h"
#include "core/gpu/lanczos.h"
#include "core/gpu/scratch.h"

namespace tfx::core::gpu {

// Rows of `coefficients` and `vectors`.
enum { kHiddenGSum, kHiddenAlpha, kShiftStep, kRowSumStep, kNumVectors };

struct StepArrays {
  template <typename T>
  StepArrays(const FactoredStepArguments<T>& step, Scratch* scratch)
      : verdict(scratch->Take<FactoredVerdict>(1)), rates(scratch->Take<StepRates>(1)) {
    const int64_t size = step.batch.batch, width = step.state.width;
    const int64_t num_places = size * step.batch.num_labels, by_width = size * width;
    few = size <= width;
    const int64_t n = few ? size : width;
    links = {scratch->Take<int64_t>(num_places), scratch->Take<int64_t>(num_places)};
    for (double** array : {&rows, &x}) *array = scratch->Take<double>(num_places * width);
    for (double** array : {&hidden, &scaled, &u_hidden, &y, &error, &residual}) {
      *array = scratch->Take<double>(by_width);
    }
    for (double** array : {&u, &p, &half}) *array = scratch->Take<double>(width * width);
    alpha = scratch->Take<double>(size);
    coefficients = scratch->Take<double>(kNumVectors * size);
    vectors = scratch->Take<double>(kNumVectors * width);
    system = scratch->Take<double>(n * (n + width));
    t = few ? scratch->Take<double>(size * size) : nullptr;
    k = few ? nullptr : scratch->Take<double>(width * width);
    j = few ? nullptr : scratch->Take<double>(width * width);
    directions = !few ? scratch->Take<double>(by_width) : system == nullptr ? nullptr : system + n;
    direction_stride = few ? n + width : width;
    work =
        scratch->Take<double>(std::max(EliminationScratch(n, width), LanczosScratch(size, width)));
  }

  FactoredVerdict* verdict;
  StepRates* rates;
  bool few;  // few examples: M^-1 comes from [B, B]
  LabelLinks links;
  double *rows, *x;                // V[y] and x_y at the first position of each label, [B K, D]
  double *hidden, *scaled;         // H and 2 eta G H
  double* u_hidden;                // H U^T
  double *y, *error;               // Y and E
  double* residual;                // sums of g_a V[y], then R^T = E - eta / 2 T H
  double *u, *p, *half;            // U', P' and (R H)^T
  double* alpha;                   // [B]
  double *coefficients, *vectors;  // [kNumVectors, B] and [kNumVectors, D]
  double* system;                  // [B, B + D], or [D, D + D]
  double* t;                       // T - Abar^T Abar, times eta
  double *k, *j;                   // 2 eta H^T G H and Y^T H
  double* directions;              // H P'^T for the P' without decay, rows direction_stride apart
  int64_t direction_stride;
  double* work;
};

// Calls visit(first position of the label, g_a) for each label of an example.
template <typename T, typename Visit>
__device__ void ForEachLabel(const FactoredStepArguments<T>& step, const StepArrays& arrays,
                             int64_t example, const Visit& visit) {
  const int64_t num_labels = step.batch.num_labels;
  for (int64_t place = example * num_labels; place < (example + 1) * num_labels; ++place) {
    const int64_t first = arrays.links.first[place];
    if (first >= 0) visit(first, static_cast<double>(step.gradients.g_target[place]));
  }
}

// Calls visit(example, g_a) for each position of the label, given by its first position.
template <typename T, typename Visit>
__device__ void ForEachExample(const FactoredStepArguments<T>& step, const StepArrays& arrays,
                               int64_t first, const Visit& visit) {
  const int64_t num_places = step.batch.batch * step.batch.num_labels;
  for (int64_t place = first; place < num_places; place = arrays.links.next[place]) {
    visit(place / step.batch.num_labels, static_cast<double>(step.gradients.g_target[place]));
  }
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FACTORED_STEP_ARRAYS_H_
