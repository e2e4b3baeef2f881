// SPDX-License-Identifier: Apache-2.0

#include "core/radix_sort.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

struct Record {
  uint32_t class_id;
  uint32_t place;
};

TEST(RecordsAreSortedAndEqualOnesStayInOrder) {
  std::mt19937 random(1);
  for (int bits : {1, 7, 12, 20, 31}) {
    for (int64_t n : {0, 1, 24, 25, 1000, 5000}) {
      std::vector<Record> records(n), spare(n);
      for (int64_t i = 0; i < n; ++i) {
        records[i] = {static_cast<uint32_t>(random() & ((int64_t{1} << bits) - 1)),
                      static_cast<uint32_t>(i)};
        if (i % 3 == 0) records[i].class_id = records[i / 2].class_id;
      }
      auto expected = records;
      std::stable_sort(expected.begin(), expected.end(),
                       [](const Record& a, const Record& b) { return a.class_id < b.class_id; });
      SortByClass(records.data(), spare.data(), n, bits);
      for (int64_t i = 0; i < n; ++i) {
        EXPECT(records[i].class_id == expected[i].class_id);
        EXPECT(records[i].place == expected[i].place);
      }
    }
  }
}

// As in a bucket: the upper bits are equal and need not be sorted.
TEST(UpperBitsThatAreAlikeStay) {
  std::vector<Record> records(100), spare(100);
  for (uint32_t i = 0; i < 100; ++i) records[i] = {0xabc00u | (99 - i), i};
  SortByClass(records.data(), spare.data(), 100, 7);
  for (uint32_t i = 0; i < 100; ++i) EXPECT(records[i].class_id == (0xabc00u | i));
}

TEST(BitsTellClassesApart) {
  EXPECT(BitsOfClasses(1) == 1);
  EXPECT(BitsOfClasses(2) == 1);
  EXPECT(BitsOfClasses(3) == 2);
  EXPECT(BitsOfClasses(1 << 20) == 20);
  EXPECT(BitsOfClasses((1 << 20) + 1) == 21);
}

}  // namespace tfx::core
