// SPDX-License-Identifier: Apache-2.0
//
// Candidates from buckets on a GPU equal those on the processor.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/bucket_candidates.h"
#include "core/gpu/bucket_candidates.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/hash_problem.h"

namespace tfx::core::gpu {
namespace {

using test::DeviceArray;
using Wide = std::vector<int64_t>;

struct Sizes {
  int64_t classes, tables, of_range, ranges, examples, queries, most, budget;
};

// Tables of random codes, and queries.
struct Problem {
  Problem(const Sizes& sizes, unsigned seed)
      : s(sizes), entries(s.tables * s.classes, -1), rotations(s.tables) {
    std::mt19937 random(seed);
    for (int64_t t = 0; t < s.tables; ++t) {
      std::vector<Ids> buckets(s.ranges * s.of_range);
      for (int32_t c = 0; c < s.classes; ++c) {
        // Some are in no bucket; the first buckets are fuller.
        const auto bucket = static_cast<int64_t>(random() % (buckets.size() + 1));
        if (bucket > 0) buckets[random() % bucket].push_back(c);
      }
      int32_t* to = entries.data() + t * s.classes;
      starts.push_back(0);
      for (const Ids& bucket : buckets) {
        to = std::copy(bucket.begin(), bucket.end(), to);
        starts.push_back(static_cast<int32_t>(to - entries.data() - t * s.classes));
      }
      order.push_back(static_cast<int32_t>(t));
      rotations[t] = t == 0 ? 0xffffffff : t == 1 ? 0 : static_cast<int64_t>(random());
    }
    std::shuffle(order.begin(), order.end(), random);
    for (int64_t i = 0; i < s.examples * s.queries * s.tables; ++i) {
      codes.push_back(static_cast<int32_t>(random() % (s.of_range + 1)) - 1);
    }
    first_class = static_cast<int64_t>(random() % s.classes);
  }

  HashTables Tables(int32_t* entries_at, int32_t* starts_at) const {
    return {entries_at, starts_at, s.tables, s.classes, s.ranges * s.of_range};
  }

  core::BucketQueries Queries(const int32_t* codes_at, const int32_t* order_at,
                              const uint32_t* rotations_at) const {
    return {codes_at, s.examples, s.queries, order_at, rotations_at, s.most, s.budget, s.ranges};
  }

  Sizes s;
  Ids entries, starts, codes, order;
  Wide rotations;
  int64_t first_class;
};

struct Found {
  Wide ids, marks;
  QueryFaults faults;

  bool IsRefused() const { return faults.visit != kNoFault; }
};

Found OnGpu(const Problem& p, bool own, bool gives_marks = true) {
  const DeviceArray<int32_t> entries(p.entries), starts(p.starts), codes(p.codes), order(p.order);
  const DeviceArray<int64_t> rotations(p.rotations), first_class(Wide{p.first_class});
  const HashTables tables = p.Tables(entries.data(), starts.data());
  const BucketQueries queries = {p.Queries(codes.data(), order.data(), nullptr), rotations.data(),
                                 first_class.data()};
  const int64_t n = p.s.budget * (own ? p.s.examples : 1);
  const DeviceArray<int64_t> ids(n), marks(n);
  const DeviceArray<uint64_t> memory(BucketCandidatesScratchBytes(tables, queries.queries, own) /
                                     sizeof(uint64_t));
  const auto find = own ? OwnBucketCandidates : VotedBucketCandidates;
  EXPECT(find(nullptr, tables, queries, memory.data(), ids.data(),
              gives_marks ? marks.data() : nullptr)
             .ok());
  QueryFaults faults;
  const std::vector<uint64_t> all = memory.Values();
  std::memcpy(&faults, all.data(), sizeof faults);
  return {ids.Values(), gives_marks ? marks.Values() : Wide(), faults};
}

Found OnProcessor(Problem p, bool own) {
  Workspace workspace;
  const Workspace::Scope scope(workspace);
  const Execution execution = OneWorker(InstructionSet::kBaseline, workspace);
  const HashTables tables = p.Tables(p.entries.data(), p.starts.data());
  const std::vector<uint32_t> rotations(p.rotations.begin(), p.rotations.end());
  const core::BucketQueries queries = p.Queries(p.codes.data(), p.order.data(), rotations.data());
  const int64_t n = p.s.budget * (own ? p.s.examples : 1);
  Found found = {Wide(n), Wide(n), {kNoFault, kNoFault, kNoFault, kNoFault, kNoFault}};
  BucketVotes votes;
  const bool good = own ? core::OwnBucketCandidates(tables, queries, execution, found.ids.data(),
                                                    found.marks.data())
                        : votes.Candidates(tables, queries, p.first_class, execution,
                                           found.ids.data(), found.marks.data());
  if (!good) found.faults.visit = 0;
  return found;
}

const Sizes kSizes[] = {
    {40, 3, 5, 1, 9, 1, 7, 5},        // few of many
    {40, 3, 5, 2, 9, 2, 100, 40},     // all classes, and more room than there are
    {300, 2, 1, 1, 3, 1, 250, 70},    // buckets of several rounds; a budget that ends in one
    {5000, 7, 64, 1, 20, 3, 9, 33},   // more than 32 visits, and tiles
    {500, 40, 3, 3, 2, 1, 256, 499},  // the order of tables
    {1, 1, 1, 1, 1, 1, 1, 1},        {20, 2, 3, 1, 0, 1, 4, 3},  // no examples
    {20, 2, 3, 1, 4, 0, 4, 3},                                   // no queries
};

TEST(CandidatesAreThoseOfTheProcessor) {
  unsigned seed = 0;
  for (const Sizes& sizes : kSizes) {
    for (const bool own : {true, false}) {
      const Problem problem(sizes, ++seed);
      const Found found = OnGpu(problem, own), expected = OnProcessor(problem, own);
      EXPECT(found.ids == expected.ids);
      EXPECT(found.marks == expected.marks);
      EXPECT(found.faults.code == kNoFault && found.faults.order == kNoFault);
      EXPECT(found.faults.rotation == kNoFault && found.faults.first_class == kNoFault);
      EXPECT(!found.IsRefused());
      EXPECT(OnGpu(problem, own, false).ids == expected.ids);
    }
  }
}

TEST(WhatIsRefusedIsNamed) {
  for (const bool own : {true, false}) {
    Problem problem({40, 3, 5, 2, 9, 2, 100, 40}, 3);
    const Problem good = problem;
    problem.codes[7] = 5;
    problem.codes[11] = 0x7fffffff;
    EXPECT(OnGpu(problem, own).faults.code == 7);
    problem = good;
    problem.order[1] = problem.order[0];
    EXPECT(OnGpu(problem, own).faults.order == 1);
    problem.order = {-1, 3, 0};
    EXPECT(OnGpu(problem, own).faults.order == 0);
    problem = good;
    problem.rotations[2] = int64_t{1} << 32;
    EXPECT(OnGpu(problem, own).faults.rotation == 2);
    for (const int64_t first_class : {-1, 40}) {
      problem = good;
      problem.first_class = first_class;
      EXPECT(OnGpu(problem, own).faults.first_class == 0);
    }
  }
}

TEST(WhatIsCorruptIsRefusedAsOnTheProcessor) {
  int refused = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Sizes sizes =
        seed % 2 == 0 ? Sizes{40, 3, 5, 1, 3, 1, 7, 5} : Sizes{300, 2, 2, 1, 3, 1, 250, 70};
    Problem problem(sizes, seed);
    std::mt19937 random(seed);
    Ids& array = random() % 2 == 0 ? problem.entries : problem.starts;
    const int32_t wrong[] = {-1, -5, static_cast<int32_t>(sizes.classes), 0x7fffffff};
    for (int i = 0; i < 3; ++i) array[random() % array.size()] = wrong[random() % 4];
    for (const bool own : {true, false}) {
      const Found expected = OnProcessor(problem, own);
      EXPECT(OnGpu(problem, own).IsRefused() == expected.IsRefused());
      refused += expected.IsRefused();
    }
  }
  EXPECT(refused > 10 && refused < 110);
}

}  // namespace
}  // namespace tfx::core::gpu
