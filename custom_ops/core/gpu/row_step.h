// SPDX-License-Identifier: Apache-2.0
//
// Steps of SGD, Adagrad and Adam on rows of weights on a GPU, with the arithmetic of row_kernels.

#ifndef TFX_LARGEOUT_CORE_GPU_ROW_STEP_H_
#define TFX_LARGEOUT_CORE_GPU_ROW_STEP_H_

#include <cstdint>

#include "core/gpu/bfloat16.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/row_rule.h"

namespace tfx::core::gpu {

// Adam's correction for the age of a row: see AdamCorrection.
__device__ inline float AdamCorrectionAt(const RowRule& rule, uint32_t age) {
  const double rest_1 = 1 - pow(rule.beta_1, static_cast<double>(age));
  const double rest_2 = 1 - pow(rule.beta_2, static_cast<double>(age));
  return static_cast<float>(sqrt(rest_2) / rest_1);
}

// Increments the age of a row. Returns its learning rate.
__device__ inline float RateOfNextAge(const RowRule& rule, uint32_t* age) {
  constexpr uint32_t kLastAge = 0x7fffffff;
  if (*age < kLastAge) ++*age;  // never exceeds kLastAge
  return *rule.learning_rate * AdamCorrectionAt(rule, *age);
}

// The factor that scales a gradient with squared norm `squares` down to the clip norm.
__device__ inline float ClipScale(float clip_norm, float squares) {
  const float norm = sqrtf(squares);
  return norm > clip_norm ? clip_norm / norm : 1.f;
}

// The factor of weights before the step.
__device__ inline float KeptBy(const RowRule& rule) {
  return static_cast<float>(1 - *rule.learning_rate * rule.weight_decay);
}

// Changes weight `at` and its slots by its gradient g; `rate` is corrected for the age of the row.
__device__ inline void StepWeight(const RowStep& s, float rate, float kept, float g,
                                  const WeightRows& rows, int64_t at) {
  const auto set = [&rows, at](float weight) {
    SetNumber(rows.weights, rows.is_bfloat16, at, weight);
  };
  float* const slot_0 = static_cast<float*>(rows.slots[0]);
  float* const slot_1 = static_cast<float*>(rows.slots[1]);
  const float w = kept * NumberAt(rows.weights, rows.is_bfloat16, at);
  switch (s.method) {
    case RowMethod::kSgd:
      set(w - rate * g);
      return;
    case RowMethod::kMomentum:
      set(w + (slot_0[at] = s.momentum * slot_0[at] - rate * g));
      return;
    case RowMethod::kNesterov: {
      const float m = slot_0[at] = s.momentum * slot_0[at] - rate * g;
      set(w + (s.momentum * m - rate * g));
      return;
    }
    case RowMethod::kAdagrad: {
      const float sum = slot_0[at] = fmaf(g, g, slot_0[at]);
      set(w - rate * g / sqrtf(sum + s.epsilon));
      return;
    }
    case RowMethod::kAdam: {
      const float m = slot_0[at] = fmaf(s.rest_1, g, s.momentum * slot_0[at]);
      const float v = slot_1[at] = fmaf(s.rest_2, g * g, s.beta_2 * slot_1[at]);
      set(w - rate * m / (sqrtf(v) + s.epsilon));
      return;
    }
  }
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_ROW_STEP_H_
