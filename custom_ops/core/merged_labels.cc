// SPDX-License-Identifier: Apache-2.0

#include "core/merged_labels.h"

#include <algorithm>

namespace tfx::core {

MergedLabels::MergedLabels(const int64_t* labels, int64_t batch, int64_t num_labels)
    : places(batch * num_labels, -1) {
  for (int64_t at = 0; at < batch * num_labels; ++at) {
    if (labels[at] >= 0) positions.push_back(at);
  }
  std::sort(positions.begin(), positions.end(), [&](int64_t a, int64_t b) {
    return labels[a] != labels[b] ? labels[a] < labels[b] : a < b;
  });
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t label = labels[positions[i]];
    if (classes.empty() || classes.back() != label) {
      classes.push_back(label);
      offsets.push_back(static_cast<int64_t>(i));
    }
    places[positions[i]] = size() - 1;
  }
  offsets.push_back(static_cast<int64_t>(positions.size()));
}

}  // namespace tfx::core
