// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_PARALLEL_FOR_H_
#define TFX_LARGEOUT_CORE_PARALLEL_FOR_H_

#include <cstdint>
#include <functional>

namespace tfx::core {

// Calls its second argument with ranges that make up [0, n), perhaps in parallel. The third is
// about how many nanoseconds one index costs.
using ParallelFor =
    std::function<void(int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t cost)>;

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_PARALLEL_FOR_H_
