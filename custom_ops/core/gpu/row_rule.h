// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_GPU_ROW_RULE_H_
#define TFX_LARGEOUT_CORE_GPU_ROW_RULE_H_

#include "core/row_update.h"

namespace tfx::core::gpu {

// The update of rows in a step. Its learning rate is on the device, so that the host does not wait.
struct RowRule {
  RowStep step;                // except for its learning_rate and `kept`
  const float* learning_rate;  // a scalar
  double weight_decay;
  double beta_1, beta_2;  // of Adam
};

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_ROW_RULE_H_
