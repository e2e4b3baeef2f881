// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_CLASS_SHARD_H_
#define TFX_LARGEOUT_CORE_CLASS_SHARD_H_

#include <algorithm>
#include <cstdint>

namespace tfx::core {

// The classes of the rows of a matrix: row r is class first + stride r. A whole layer has first 0
// and stride 1.
struct ClassShard {
  int64_t first;   // at least 0
  int64_t stride;  // at least 1
  int64_t num_rows;

  constexpr int64_t ClassOf(int64_t row) const { return first + stride * row; }

  // The number of rows with classes below `id`.
  constexpr int64_t RowsBelow(int64_t id) const {
    if (id <= first) return 0;
    return std::min((id - first - 1) / stride + 1, num_rows);
  }

  // The row of a class, or -1 if it has none here.
  constexpr int64_t RowOf(int64_t id) const {
    const int64_t row = RowsBelow(id);
    return row < num_rows && ClassOf(row) == id ? row : -1;
  }
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_CLASS_SHARD_H_
