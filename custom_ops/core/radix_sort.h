// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_RADIX_SORT_H_
#define TFX_LARGEOUT_CORE_RADIX_SORT_H_

#include <cstdint>
#include <cstring>

namespace tfx::core {

// A position of a class.
struct ClassPlace {
  uint32_t class_id;
  uint32_t place;
};

// The number of bits that distinguish n classes, at least 1.
inline int BitsOfClasses(int64_t n) {
  int bits = 1;
  while ((int64_t{1} << bits) < n) ++bits;
  return bits;
}

// Sorts n records by their member class_id, which may differ only in the lowest `bits` bits. The
// sort is stable.
//
// Cost: O(n) per digit of at most 11 bits.
//
// REQUIRES: `spare` has room for n records.
template <typename Record>
void SortByClass(Record* records, Record* spare, int64_t n, int bits) {
  constexpr int64_t kFew = 24;
  if (n <= kFew) {
    for (int64_t i = 1; i < n; ++i) {
      const Record record = records[i];
      int64_t j = i;
      for (; j > 0 && records[j - 1].class_id > record.class_id; --j) records[j] = records[j - 1];
      records[j] = record;
    }
    return;
  }
  int most = 5;  // bits per digit: not more counters than records
  while (most < 11 && (int64_t{2} << most) <= n) ++most;
  const int passes = (bits + most - 1) / most;
  Record* from = records;
  Record* to = spare;
  for (int pass = 0; pass < passes; ++pass) {
    const int first = bits * pass / passes, size = bits * (pass + 1) / passes - first;
    const uint32_t mask = (1u << size) - 1;
    uint32_t places[1 << 11];
    std::memset(places, 0, sizeof(uint32_t) << size);
    for (int64_t i = 0; i < n; ++i) ++places[(from[i].class_id >> first) & mask];
    uint32_t place = 0;
    for (uint32_t digit = 0; digit <= mask; ++digit) {
      const uint32_t count = places[digit];
      places[digit] = place;
      place += count;
    }
    for (int64_t i = 0; i < n; ++i) to[places[(from[i].class_id >> first) & mask]++] = from[i];
    Record* const sorted = to;
    to = from;
    from = sorted;
  }
  if (from != records) std::memcpy(records, from, n * sizeof(Record));
}

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_RADIX_SORT_H_
