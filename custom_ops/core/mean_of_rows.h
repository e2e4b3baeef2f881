// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_MEAN_OF_ROWS_H_
#define TFX_LARGEOUT_CORE_MEAN_OF_ROWS_H_

#include <cstdint>

#include "core/execution.h"

namespace tfx::core {

// Sets mean [width] to the mean of the rows of a matrix [num_rows, width] of float or bfloat16.
// Sums of up to 16 numbers are floats, longer sums are doubles. The result does not depend on the
// number of workers.
//
// Cost: the matrix is read once. Memory: O(width) for up to 64 partial sums.
//
// REQUIRES: num_rows > 0.
void MeanOfRows(const void* rows, bool is_bfloat16, int64_t num_rows, int64_t width,
                const Execution& execution, float* mean);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_MEAN_OF_ROWS_H_
