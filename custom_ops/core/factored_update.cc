// SPDX-License-Identifier: Apache-2.0

#include "core/factored_update.h"

#include "core/factored_step.h"

namespace tfx::core {

template <typename T>
FactoredOutcome FactoredUpdate(const FactoredState<T>& state, const FactoredBatch<T>& batch,
                               const FactoredGradients<T>& gradients, const FactoredRates<T>& rates,
                               bool update, const FactoredResources<T>& resources,
                               T* hidden_gradient) {
  FactoredStep<T> step(state, batch, gradients, rates, resources, hidden_gradient);
  if (update) return step.Update();
  step.Gradient();
  return {false, 0};
}

template FactoredOutcome FactoredUpdate(const FactoredState<float>&, const FactoredBatch<float>&,
                                        const FactoredGradients<float>&,
                                        const FactoredRates<float>&, bool,
                                        const FactoredResources<float>&, float*);
template FactoredOutcome FactoredUpdate(const FactoredState<double>&, const FactoredBatch<double>&,
                                        const FactoredGradients<double>&,
                                        const FactoredRates<double>&, bool,
                                        const FactoredResources<double>&, double*);

}  // namespace tfx::core
