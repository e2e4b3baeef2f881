// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/bucket_candidates.h"
#include "tests/expect.h"
#include "tests/hash_problem.h"

namespace tfx::core {

// The value of function j, or -1 if it sees only zeros: straight from the definition.
int32_t ValueOf(const HashFamily& family, int64_t j, const float* x) {
  if (family.planes != nullptr) {
    double product = 0;
    for (int64_t d = 0; d < family.width; ++d)
      product += family.planes[j * family.width + d] * x[d];
    return product > 0;
  }
  const int32_t* elements = family.elements + j * family.window;
  int32_t best = 0;
  bool empty = true;
  for (int32_t i = 0; i < family.window; ++i) {
    if (x[elements[i]] > x[elements[best]]) best = i;
    empty = empty && x[elements[i]] == 0;
  }
  return empty ? -1 : best;
}

int32_t FilledValueOf(const HashFamily& family, int64_t j, const float* x) {
  const int64_t bins = family.bins, first = j / bins * bins;
  for (int64_t d = 0; d < bins; ++d) {
    for (int64_t bin : {j - first + d, j - first - d + bins}) {
      const int32_t value = ValueOf(family, first + bin % bins, x);
      if (value >= 0) return value;
    }
  }
  return bins == 1 ? 0 : kNoCode;
}

int32_t CodeOf(const HashFamily& family, int64_t table, const float* x) {
  if (std::all_of(x, x + family.width, [](float entry) { return entry == 0; })) return kNoCode;
  int64_t code = 0;
  for (int64_t k = family.hashes_per_table - 1; k >= 0; --k) {
    const int32_t value = FilledValueOf(family, table * family.hashes_per_table + k, x);
    if (value < 0) return kNoCode;
    code = code * (family.planes != nullptr ? 2 : family.window) + value;
  }
  return static_cast<int32_t>(code);
}

TEST(CodesAreThoseOfAPlainLoop) {
  std::mt19937 random(1);
  Workspace workspace;
  for (const Functions& functions : Families(random)) {
    const HashFamily& family = functions.family;
    const int64_t width = family.width, num_tables = family.num_tables;
    const Floats rows = SparseRows(200 * width, random);
    const LayerWeights weights = {rows.data(), nullptr, false, 200, width};
    for (InstructionSet set : InstructionSets()) {
      for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, num_tables}, {1, num_tables - 1}}) {
        if (begin >= end) continue;
        for (int64_t n : {0, 1, 5, 63, 64}) {
          const Workspace::Scope scope(workspace);
          const Hasher hasher(family, begin, end, OneWorker(set, workspace));
          Ids ids(n), codes((end - begin) * Hasher::kRows, -7);
          for (int32_t& id : ids) id = static_cast<int32_t>(random() % 200);
          float* scratch = workspace.Take<float>(hasher.ScratchSize());
          EXPECT(hasher.Codes(weights, ids.data(), n, scratch, codes.data(), Hasher::kRows) == n);
          for (int64_t t = begin; t < end; ++t) {
            for (int64_t i = 0; i < Hasher::kRows; ++i) {
              const int32_t expected = i < n ? CodeOf(family, t, rows.data() + ids[i] * width) : -7;
              EXPECT(codes[(t - begin) * Hasher::kRows + i] == expected);
            }
          }
        }
      }
    }
  }
}

// Rows with radii are hashed as longer vectors that are written out here.
TEST(RowsOfEachRangeHaveBucketsOfTheirOwn) {
  std::mt19937 random(8);
  const int64_t n = 130, width = 6;
  const Floats rows = SparseRows(n * width, random), bias = SparseRows(n, random);
  Functions functions = Functions::Signs(width + 2, 3, 4, random);
  const HashFamily plain = functions.family;
  const Floats radii = {6.5f, 4.5f, 3.5f};
  functions.family.radii = radii.data();
  functions.family.num_radii = 3;
  Floats vectors;
  Ids ranges;
  for (int64_t i = 0; i < n; ++i) {
    const float* row = rows.data() + i * width;
    float square = bias[i] * bias[i];
    for (int64_t d = 0; d < width; ++d) square += row[d] * row[d];
    const int32_t range = square <= 3.5f * 3.5f ? 2 : square <= 4.5f * 4.5f ? 1 : 0;
    ranges.push_back(range);
    vectors.insert(vectors.end(), row, row + width);
    vectors.push_back(bias[i]);
    vectors.push_back(std::sqrt(std::max(0.0f, radii[range] * radii[range] - square)));
  }
  for (const InstructionSet set : InstructionSets()) {
    Workspace workspace;
    const Workspace::Scope scope(workspace);
    const auto codes_of = [&](const HashFamily& family, const LayerWeights& weights) {
      Ids codes(n * family.num_tables);
      EXPECT(HashCodes(family, weights, OneWorker(set, workspace), codes.data()) == -1);
      return codes;
    };
    Ids expected = codes_of(plain, {vectors.data(), nullptr, false, n, width + 2});
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t t = 0; t < 4; ++t) expected[i * 4 + t] += 8 * ranges[i];
    }
    EXPECT(codes_of(functions.family, {rows.data(), bias.data(), false, n, width}) == expected);
  }
}

TEST(RowsThatAreNotFiniteAreNamed) {
  std::mt19937 random(2);
  Workspace workspace;
  const Functions functions = Functions::Winners(9, 3, 3, 2, 2, random);
  Floats rows(100 * 9, 1.0f);
  rows[70 * 9 + 8] = std::numeric_limits<float>::quiet_NaN();
  const LayerWeights weights = {rows.data(), nullptr, false, 100, 9};
  Ids codes(200);
  const Execution execution = OneWorker(InstructionSet::kBaseline, workspace);
  EXPECT(HashCodes(functions.family, weights, execution, codes.data()) == 70);
  rows[70 * 9 + 8] = 0;
  EXPECT(HashCodes(functions.family, weights, execution, codes.data()) == -1);
}

TEST(IncrementsGiveABuildFromScratch) {
  std::mt19937 random(3);
  for (const Functions& functions : Families(random)) {
    const HashFamily& family = functions.family;
    const int64_t classes = 1500, width = family.width;
    if (family.NumBuckets() > 5000) continue;
    Floats rows = SparseRows(classes * width, random);
    Index index(family, classes);
    for (int32_t now = 0; now < 12; ++now) {
      for (int changes = random() % 90; changes > 0; --changes) {
        const int64_t c = random() % classes;
        const Floats row = SparseRows(width, random);
        std::copy(row.begin(), row.end(), rows.begin() + c * width);
        index.touched_at[c] = now;
      }
      const bool is_last = now == 11;
      const int64_t begin = is_last ? 0 : random() % family.num_tables;
      const int64_t end =
          is_last ? family.num_tables : begin + 1 + random() % (family.num_tables - begin);
      int64_t moved = 0;
      EXPECT(!index.Update(rows, begin, end, now, &moved));
      Index scratch(family, classes);
      int64_t all = 0;
      EXPECT(!scratch.Update(rows, 0, family.num_tables, 0, &all));
      const int64_t stride = family.NumBuckets() + 1;
      EXPECT(std::equal(index.entries.begin() + begin * classes,
                        index.entries.begin() + end * classes,
                        scratch.entries.begin() + begin * classes));
      EXPECT(std::equal(index.starts.begin() + begin * stride, index.starts.begin() + end * stride,
                        scratch.starts.begin() + begin * stride));
      for (int64_t t = begin; t < end; ++t) EXPECT(index.built_at[t] == now);
    }
    int64_t moved = 0;
    EXPECT(!index.Update(rows, 0, family.num_tables, 12, &moved));
    EXPECT(moved == 0);
  }
}

TEST(WhatIsWrongChangesNothing) {
  std::mt19937 random(4);
  const Functions functions = Functions::Winners(9, 3, 3, 2, 3, random);
  Floats rows = SparseRows(50 * 9, random);
  Index index(functions.family, 50);
  int64_t moved = 0;
  EXPECT(!index.Update(rows, 0, 3, 0, &moved));
  const Ids entries = index.entries, starts = index.starts, built_at = index.built_at;
  std::fill(index.touched_at.begin(), index.touched_at.end(), 1);
  rows[7 * 9] = std::numeric_limits<float>::infinity();
  const HashFault of_row = index.Update(rows, 0, 3, 1, &moved);
  EXPECT(of_row.row == 7 && of_row.table < 0);
  EXPECT(index.entries == entries && index.starts == starts && index.built_at == built_at);
  rows[7 * 9] = 0;
  index.touched_at[9] = 0;
  index.starts[10 + 4] = 99;
  const HashFault of_table = index.Update(rows, 0, 3, 1, &moved);
  EXPECT(of_table.table == 1 && of_table.row < 0);
  EXPECT(index.entries == entries && index.built_at == built_at);
  index.starts = starts;
  index.entries[2 * 50 + 1] = index.entries[2 * 50];  // a class twice
  EXPECT(index.Update(rows, 0, 3, 1, &moved).table == 2);
  EXPECT(index.starts == starts && index.built_at == built_at);
}

TEST(CorruptTablesAreWrittenAnewWhereAllRowsHaveChanged) {
  std::mt19937 random(6);
  const Functions functions = Functions::Signs(9, 3, 3, random);
  Floats rows(50 * 9);
  for (float& entry : rows) entry = static_cast<float>(1 + random() % 5);
  Index index(functions.family, 50);
  int64_t moved = 0;
  EXPECT(!index.Update(rows, 0, 3, 0, &moved));
  EXPECT(moved == 3 * 50);
  const Ids entries = index.entries, starts = index.starts;
  index.starts[9 + 4] = 99;
  index.entries[2 * 50 + 7] = -5;
  std::fill(index.touched_at.begin(), index.touched_at.end(), 1);
  moved = 0;
  EXPECT(!index.Update(rows, 0, 3, 1, &moved));
  EXPECT(moved == 2 * 50);
  EXPECT(index.entries == entries && index.starts == starts);
}

// Votes of one call must not count in the next, whatever came of the first.
TEST(VotesDoNotStay) {
  const int64_t classes = 40;
  std::mt19937 random(5);
  Ids entries(classes), starts = {0, 10, 20, 30, 40};
  std::iota(entries.begin(), entries.end(), 0);
  const HashTables tables = {entries.data(), starts.data(), 1, classes, 4};
  const Ids order = {0};
  const std::vector<uint32_t> rotations = {0};
  Workspace workspace;
  const Execution execution = OneWorker(InstructionSet::kBaseline, workspace);
  // Returns an empty vector if something is corrupt.
  const auto call = [&](BucketVotes& votes, const Ids& codes) {
    const Workspace::Scope scope(workspace);
    const int64_t n = static_cast<int64_t>(codes.size());
    const BucketQueries queries = {codes.data(), n, 1, order.data(), rotations.data(), 7, 5, 1};
    std::vector<int64_t> ids(10);  // and their votes
    const bool good = votes.Candidates(tables, queries, 0, execution, ids.data(), ids.data() + 5);
    if (!good) ids.clear();
    return ids;
  };
  BucketVotes votes;
  for (int round = 0; round < 20; ++round) {
    Ids codes(1 + random() % 20);
    for (int32_t& code : codes) code = static_cast<int32_t>(random() % 5) - 1;
    BucketVotes fresh;
    EXPECT(call(votes, codes) == call(fresh, codes));
    codes.push_back(1);
    starts[2] = 41;  // after the last class
    EXPECT(call(votes, codes).empty());
    starts[2] = 20;
  }
}

// Of several rows that are not finite, and of several corrupt tables, the first is named.
TEST(TheFirstThatIsWrongIsNamed) {
  const ParallelFor on_threads = [](int64_t n, const std::function<void(int64_t, int64_t)>& work,
                                    int64_t) {
    std::vector<std::thread> threads;
    for (int64_t i = n; i-- > 0;) threads.emplace_back(work, i, i + 1);
    for (std::thread& thread : threads) thread.join();
  };
  std::mt19937 random(1);
  constexpr int64_t kClasses = 9000;
  const Functions functions = Functions::Signs(8, 3, 6, random);
  Workspace workspace;
  const Execution execution(InstructionSets().front(), 5, on_threads, workspace);
  const auto expect = [&](int64_t first_row, int64_t first_table) {
    Floats rows = SparseRows(kClasses * 8, random);
    for (int64_t row = first_row; row >= 0 && row < kClasses; row += 1500) rows[row * 8] = NAN;
    const LayerWeights weights = {rows.data(), nullptr, false, kClasses, 8};
    Index index(functions.family, kClasses);
    for (int64_t t = first_table; t >= 0 && t < 6; ++t) index.starts[t * 9] = 5;
    index.built_at.assign(6, 0);  // rows 1000 and on have changed
    for (int64_t row = 0; row < kClasses; ++row) index.touched_at[row] = row >= 1000;
    Ids codes(kClasses * 6);
    int64_t moved = 0;
    const Workspace::Scope scope(workspace);
    EXPECT(HashCodes(functions.family, weights, execution, codes.data()) == first_row);
    const HashFault fault =
        UpdateTables(functions.family, weights, {index.touched_at.data(), index.built_at.data()}, 0,
                     6, 1, index.Tables(), execution, &moved);
    EXPECT(fault.row == first_row && fault.table == first_table);
  };
  for (int i = 0; i < 20; ++i) {
    expect(1200, -1);
    expect(-1, 2);
  }
}

}  // namespace tfx::core
