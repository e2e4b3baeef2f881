// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_CLASS_FILTER_H_
#define TFX_LARGEOUT_CORE_CLASS_FILTER_H_

#include <stdint.h>

namespace tfx::core {

// The rows that may be among the best k of an example: rows of its group that are not excluded.
template <typename Id>
struct FilterOf {
  const Id* excluded;     // [B, E]
  int64_t num_excluded;   // E
  const int32_t* groups;  // [C] by row; -1: never found; null: all rows may be
  const int32_t* wanted;  // [B]: the group; -1: any
};

using ClassFilter = FilterOf<int64_t>;  // excluded: ids in the layer, -1 for padding
using RowFilter = FilterOf<int32_t>;    // excluded: rows here, rising; others come last

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_CLASS_FILTER_H_
