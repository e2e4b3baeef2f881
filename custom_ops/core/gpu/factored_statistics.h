// SPDX-License-Identifier: Apache-2.0
//
// core/factored_statistics.h on a GPU.

#ifndef TFX_LARGEOUT_CORE_GPU_FACTORED_STATISTICS_H_
#define TFX_LARGEOUT_CORE_GPU_FACTORED_STATISTICS_H_

#include <cstdint>

#include "core/factored_state.h"
#include "core/factored_statistics.h"
#include "core/gpu/error.h"

struct CUstream_st;

namespace tfx::core::gpu {

// Bytes of device memory that FactoredStatistics needs besides inputs and outputs, aligned to 16.
template <typename T>
int64_t FactoredStatisticsScratchBytes(const FactoredState<T>& state,
                                       const FactoredBatch<T>& batch);

// Starts core::FactoredStatistics on a stream, with arrays on the device, in float64. Returns an
// error.
//
// Values are not checked. The logit of a label that is not a class, or whose row is in no slot, is
// NaN; so are statistics of examples that are not finite.
template <typename T>
Error FactoredStatistics(CUstream_st* stream, const FactoredState<T>& state,
                         const FactoredBatch<T>& batch, bool update_rows, void* scratch,
                         const FactoredStatisticsOutputs<T>& outputs);

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FACTORED_STATISTICS_H_
