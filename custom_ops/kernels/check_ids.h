// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_KERNELS_CHECK_IDS_H_
#define TFX_LARGEOUT_KERNELS_CHECK_IDS_H_

#include <cstdint>

#include "core/row_kernels.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfx {

// Refuses ids [n] or [n, m] that are not in [lowest, end).
absl::Status CheckIds(const char* name, const tensorflow::Tensor& ids, int64_t lowest, int64_t end,
                      const core::RowKernels& kernels);

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_CHECK_IDS_H_
