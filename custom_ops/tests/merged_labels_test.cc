// SPDX-License-Identifier: Apache-2.0

#include "core/merged_labels.h"

#include <cstdint>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

using Ids = std::vector<int64_t>;

TEST(RepeatsAreMerged) {
  const Ids labels = {7, -1, 3, 7, 7, 0};
  const MergedLabels merged(labels.data(), 3, 2);
  EXPECT((merged.classes == Ids{0, 3, 7}));
  EXPECT((merged.offsets == Ids{0, 1, 2, 5}));
  EXPECT((merged.positions == Ids{5, 2, 0, 3, 4}));
  EXPECT((merged.places == Ids{2, -1, 1, 2, 2, 0}));
}

TEST(NoLabelsAreNoClasses) {
  const Ids labels = {-1, -1};
  for (int64_t num_labels : {0, 1}) {
    const MergedLabels merged(labels.data(), 2, num_labels);
    EXPECT(merged.size() == 0);
    EXPECT(merged.offsets == Ids{0});
    EXPECT(static_cast<int64_t>(merged.places.size()) == 2 * num_labels);
  }
}

}  // namespace tfx::core
