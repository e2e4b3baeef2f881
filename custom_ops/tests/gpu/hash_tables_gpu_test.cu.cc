// SPDX-License-Identifier: Apache-2.0
//
// Tables updated on a GPU equal those on the processor, bit for bit: all numbers are small
// integers, so that products with planes are exact.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/gpu/hash_tables.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/device_hashes.h"
#include "tests/hash_problem.h"

namespace tfx::core::gpu {
namespace {

using test::DeviceArray;
using test::DeviceFamily;

// Index::Update on a GPU. Returns the verdict.
TableVerdict UpdateOnGpu(Index* index, const Floats& rows, int64_t begin, int64_t end,
                         int32_t now) {
  const DeviceFamily family(index->family);
  const DeviceArray<int32_t> entries(index->entries), starts(index->starts),
      touched_at(index->touched_at), built_at(index->built_at);
  const DeviceArray<float> kernel(rows);
  const int64_t classes = index->num_classes;
  const TableUpdate update = {family.family(),
                              {kernel.data(), nullptr, false, classes,
                               index->family.width - (index->family.num_radii > 0 ? 2 : 0)},
                              {touched_at.data(), built_at.data()},
                              begin,
                              end,
                              now,
                              {entries.data(), starts.data(), index->family.num_tables, classes,
                               index->family.NumBuckets()}};
  const DeviceArray<uint64_t> memory(TableUpdateScratchBytes(update) / sizeof(uint64_t));
  TableVerdict verdict;
  const auto wait = [&] {
    const std::vector<uint64_t> all = memory.Values();
    std::memcpy(&verdict, all.data(), sizeof verdict);
  };
  EXPECT(FindChangedRows(nullptr, update, memory.data()).ok());
  wait();
  if (verdict.faults.radius != kNoFault) return verdict;
  EXPECT(HashChangedRows(nullptr, update, verdict.num_changed, memory.data()).ok());
  wait();
  const bool needs_tables = verdict.num_changed < classes;
  if (verdict.faults.row != kNoFault || verdict.faults.element != kNoFault) return verdict;
  if (needs_tables && verdict.faults.table != kNoFault) return verdict;
  EXPECT(WriteTables(nullptr, update, memory.data()).ok());
  index->entries = entries.Values();
  index->starts = starts.Values();
  index->built_at = built_at.Values();
  return verdict;
}

void ExpectSame(const Index& found, const Index& expected) {
  EXPECT(found.entries == expected.entries);
  EXPECT(found.starts == expected.starts);
  EXPECT(found.built_at == expected.built_at);
}

TEST(TablesAreThoseOfTheProcessor) {
  std::mt19937 random(3);
  std::vector<Functions> families = Families(random);
  const Floats radii = {6.5f, 4.5f, 3.5f};
  Functions ranges = Functions::Signs(8, 3, 4, random);
  // The number that makes norms equal is not an integer; codes of planes show whether it is there.
  for (int64_t j = 0; j < 12; ++j) ranges.planes[j * 8 + 7] = j % 2 == 0 ? 0.f : 1000.f;
  ranges.family.radii = radii.data();
  ranges.family.num_radii = 3;
  families.push_back(std::move(ranges));
  for (const Functions& functions : families) {
    const HashFamily& family = functions.family;
    if (family.NumBuckets() > 5000) continue;
    const int64_t classes = 2100, width = family.width - (family.num_radii > 0 ? 2 : 0);
    Floats rows = SparseRows(classes * width, random);
    Index processor(family, classes, width), gpu(family, classes, width);
    for (int32_t now = 0; now < 7; ++now) {
      for (int changes = random() % 90; changes > 0; --changes) {
        const int64_t c = random() % classes;
        const Floats row = SparseRows(width, random);
        std::copy(row.begin(), row.end(), rows.begin() + c * width);
        processor.touched_at[c] = gpu.touched_at[c] = now;
      }
      const int64_t begin = random() % family.num_tables;
      const int64_t end = begin + 1 + random() % (family.num_tables - begin);
      int64_t moved = 0;
      EXPECT(!processor.Update(rows, begin, end, now, &moved));
      const TableVerdict verdict = UpdateOnGpu(&gpu, rows, begin, end, now);
      EXPECT(verdict.moved == static_cast<unsigned long long>(moved));
      ExpectSame(gpu, processor);
    }
    // Times that can't be: as if these tables had never been built.
    processor.built_at[0] = gpu.built_at[0] = 99;
    int64_t moved = 0;
    EXPECT(!processor.Update(rows, 0, 1, 9, &moved));
    const TableVerdict verdict = UpdateOnGpu(&gpu, rows, 0, 1, 9);
    EXPECT(verdict.num_changed == classes);
    EXPECT(verdict.moved == static_cast<unsigned long long>(moved));
    ExpectSame(gpu, processor);
  }
}

TEST(WhatIsWrongIsNamedAndChangesNothing) {
  std::mt19937 random(4);
  Functions functions = Functions::Winners(9, 3, 3, 2, 3, random);
  Floats rows = SparseRows(50 * 9, random);
  Index index(functions.family, 50);
  EXPECT(UpdateOnGpu(&index, rows, 0, 3, 0).faults.table == kNoFault);
  std::fill(index.touched_at.begin(), index.touched_at.end(), 1);
  const auto refuses = [&](const auto& fault, unsigned long long place) {
    const Ids entries = index.entries, starts = index.starts, built_at = index.built_at;
    EXPECT(fault(UpdateOnGpu(&index, rows, 0, 3, 1).faults) == place);
    EXPECT(index.entries == entries && index.starts == starts && index.built_at == built_at);
  };
  const auto of_row = [](const HashFaults& faults) { return faults.row; };
  const auto of_table = [](const HashFaults& faults) { return faults.table; };
  const auto of_element = [](const HashFaults& faults) { return faults.element; };
  rows[7 * 9] = std::numeric_limits<float>::infinity();
  refuses(of_row, 7);
  rows[7 * 9] = 0;
  index.touched_at[9] = 0;
  const Ids entries = index.entries, starts = index.starts;
  index.starts[10 + 4] = 99;
  refuses(of_table, 1);
  index.starts = starts;
  index.starts[2 * 10 + 9] = 0x7fffffff;
  refuses(of_table, 2);
  index.starts = starts;
  index.starts[0] = -7;
  refuses(of_table, 0);
  index.starts = starts;
  index.entries[2 * 50 + 1] = index.entries[2 * 50];  // a class twice
  refuses(of_table, 2);
  index.entries[2 * 50 + 1] = 50;
  refuses(of_table, 2);
  index.entries = entries;
  functions.elements[5] = 9;
  refuses(of_element, 5);
}

TEST(RadiiThatDoNotFallAreNamed) {
  std::mt19937 random(5);
  Functions functions = Functions::Signs(8, 2, 2, random);
  const Floats rows = SparseRows(20 * 6, random);
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<Floats> wrong = {{2, 2}, {3, 0}, {infinity, 1}, {1, 1e-30f}, {1, -1}};
  const std::vector<unsigned long long> places = {1, 1, 0, 1, 1};
  for (size_t i = 0; i < wrong.size(); ++i) {
    functions.family.radii = wrong[i].data();
    functions.family.num_radii = 2;
    Index index(functions.family, 20, 6);
    EXPECT(UpdateOnGpu(&index, rows, 0, 2, 1).faults.radius == places[i]);
  }
}

TEST(CorruptTablesAreWrittenAnewWhereAllRowsHaveChanged) {
  std::mt19937 random(6);
  const Functions functions = Functions::Signs(9, 3, 4, random);
  Floats rows(50 * 9);
  for (float& entry : rows) entry = static_cast<float>(1 + random() % 5);
  Index index(functions.family, 50);
  EXPECT(UpdateOnGpu(&index, rows, 0, 4, 0).moved == 4 * 50);
  const Ids entries = index.entries, starts = index.starts;
  index.starts[9 + 4] = 99;
  index.entries[2 * 50 + 7] = -5;
  index.entries[3 * 50 + 7] = index.entries[3 * 50 + 8];
  std::fill(index.touched_at.begin(), index.touched_at.end(), 1);
  EXPECT(UpdateOnGpu(&index, rows, 0, 4, 1).moved == 3 * 50);
  EXPECT(index.entries == entries && index.starts == starts);
}

TEST(OnlyRowsAreMarked) {
  const DeviceArray<int64_t> ids(std::vector<int64_t>{3, -1, 0, 5, 3, -7, int64_t{1} << 40});
  const DeviceArray<int32_t> touched_at(Ids{1, 1, 1, 1, 1});
  EXPECT(MarkRows(nullptr, ids.data(), 7, 8, 5, touched_at.data()).ok());
  EXPECT(MarkRows(nullptr, ids.data(), 0, 9, 5, touched_at.data()).ok());
  EXPECT((touched_at.Values() == Ids{8, 1, 1, 8, 1}));
}

}  // namespace
}  // namespace tfx::core::gpu
