// SPDX-License-Identifier: Apache-2.0

#include "core/merged_labels.h"

#include <algorithm>

#include "core/out_of_memory.h"

namespace tfx::core {

MergedLabels::MergedLabels(const int64_t* labels, int64_t batch, int64_t num_labels) {
  const int64_t size = batch * num_labels;
  const auto is_class = [](int64_t label) { return label >= 0; };
  Assign<int64_t>(&places, size, -1);
  Reserve(&positions, std::count_if(labels, labels + size, is_class));
  for (int64_t at = 0; at < size; ++at) {
    if (is_class(labels[at])) positions.push_back(at);
  }
  std::sort(positions.begin(), positions.end(), [&](int64_t a, int64_t b) {
    return labels[a] != labels[b] ? labels[a] < labels[b] : a < b;
  });
  const auto begins_class = [&](size_t i) {
    return i == 0 || labels[positions[i - 1]] != labels[positions[i]];
  };
  int64_t num_classes = 0;
  for (size_t i = 0; i < positions.size(); ++i) num_classes += begins_class(i);
  Reserve(&classes, num_classes);
  Reserve(&offsets, num_classes + 1);
  for (size_t i = 0; i < positions.size(); ++i) {
    if (begins_class(i)) {
      classes.push_back(labels[positions[i]]);
      offsets.push_back(static_cast<int64_t>(i));
    }
    places[positions[i]] = static_cast<int64_t>(classes.size()) - 1;
  }
  offsets.push_back(static_cast<int64_t>(positions.size()));
}

}  // namespace tfx::core
