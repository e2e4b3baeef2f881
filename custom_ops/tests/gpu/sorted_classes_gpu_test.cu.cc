// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "core/gpu/scratch.h"
#include "core/gpu/sorted_classes.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"

namespace tfx::core::gpu {
namespace {

using test::DeviceArray;

// Ids in [-1, end]; the first and the last are not classes.
std::vector<int64_t> Ids(int64_t n, int64_t end, std::mt19937* random) {
  std::vector<int64_t> ids(n);
  for (int64_t& id : ids) id = static_cast<int64_t>((*random)() % (end + 2)) - 1;
  return ids;
}

void PlacesAreSorted(int64_t num_labels, int64_t num_candidates, int64_t end) {
  std::mt19937 random(static_cast<unsigned>(end));
  std::vector<int64_t> ids = Ids(num_labels, end, &random);
  const DeviceArray<int64_t> labels(ids);
  const std::vector<int64_t> others = Ids(num_candidates, end, &random);
  const DeviceArray<int64_t> candidates(others);
  ids.insert(ids.end(), others.begin(), others.end());

  std::vector<uint64_t> entries;
  for (size_t place = 0; place < ids.size(); ++place) {
    if (ids[place] < 0 || ids[place] >= end) continue;
    entries.push_back(static_cast<uint64_t>(ids[place]) << 32 | place);
  }
  std::sort(entries.begin(), entries.end());
  std::vector<uint32_t> begins;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i == 0 || entries[i] >> 32 != entries[i - 1] >> 32) begins.push_back(i);
  }
  const auto num_classes = static_cast<uint32_t>(begins.size());
  if (num_classes > 0) begins.push_back(static_cast<uint32_t>(entries.size()));

  const auto n = static_cast<int64_t>(ids.size());
  Scratch count(nullptr);
  TakeSortedClasses(n, &count);
  const DeviceArray<uint64_t> memory(count.bytes() / sizeof(uint64_t));
  Scratch scratch(memory.data());
  const SortedClasses sorted = TakeSortedClasses(n, &scratch);
  SortClasses(nullptr, labels.data(), num_labels, candidates.data(), num_candidates, end, sorted);
  const auto values = [&](const auto* from, size_t size) {
    using T = std::decay_t<decltype(*from)>;
    const std::vector<uint64_t> all = memory.Values();
    const auto* bytes =
        reinterpret_cast<const char*>(all.data()) +
        (reinterpret_cast<const char*>(from) - reinterpret_cast<char*>(memory.data()));
    const auto* begin = reinterpret_cast<const T*>(bytes);
    return std::vector<T>(begin, begin + size);
  };
  EXPECT(values(sorted.num_classes, 1)[0] == num_classes);
  EXPECT(values(sorted.entries, entries.size()) == entries);
  EXPECT(values(sorted.begins, begins.size()) == begins);
}

TEST(All) {
  PlacesAreSorted(0, 0, 5);
  PlacesAreSorted(0, 1, 1);
  PlacesAreSorted(3, 0, 1);
  PlacesAreSorted(100, 400, 255);      // digits: 1
  PlacesAreSorted(2000, 3000, 256);    // 2
  PlacesAreSorted(2048, 2048, 3);      // whole tiles
  PlacesAreSorted(10, 9000, 1 << 20);  // 3
  PlacesAreSorted(70, 50, 0x7fffffff);
  PlacesAreSorted(70000, 0, 100);  // more tiles than threads of a warp
}

}  // namespace
}  // namespace tfx::core::gpu
