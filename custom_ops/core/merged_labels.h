// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_MERGED_LABELS_H_
#define TFX_LARGEOUT_CORE_MERGED_LABELS_H_

#include <cstdint>
#include <vector>

namespace tfx::core {

// The distinct classes of a batch of labels [B, K], in rising order.
struct MergedLabels {
  // Cost: O(B K log(B K)).
  // REQUIRES: labels are class ids, or negative for none.
  MergedLabels(const int64_t* labels, int64_t batch, int64_t num_labels);

  int64_t size() const { return static_cast<int64_t>(classes.size()); }

  std::vector<int64_t> classes;
  std::vector<int64_t> offsets;    // of class c: positions[offsets[c]] to [offsets[c + 1]]
  std::vector<int64_t> positions;  // in the flattened labels
  std::vector<int64_t> places;     // [B K]: index of the label in `classes`; -1: none
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_MERGED_LABELS_H_
