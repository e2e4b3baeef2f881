// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/factored_update.h"
#include "core/largest_eigenvalue.h"

namespace tfx::core::gpu {

FactoredOutcome OutcomeOf(const FactoredVerdict& verdict) {
  if (verdict.is_safe != 0) return {false, 0};
  // Of 2 eta H^T G H, with the eta of the step before W decays.
  const double largest =
      LargestOfTridiagonal({verdict.diagonal, verdict.diagonal + verdict.num_lanczos},
                           {verdict.beside, verdict.beside + verdict.num_lanczos});
  const double decay = verdict.learning_rate * verdict.weight_decay;
  const double product = (1 - decay) * largest;
  if (product <= 2 - decay) return {false, 0};
  return {true, product / (2 * verdict.learning_rate)};
}

}  // namespace tfx::core::gpu
