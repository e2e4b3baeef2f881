// SPDX-License-Identifier: Apache-2.0
//
// Bytes that searches ask for, which don't multiply by workers, and what becomes of searches when
// they run out.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "core/bounded_top_k.h"
#include "core/bucket_candidates.h"
#include "core/probed_top_k.h"
#include "tests/bounded_top_k_problem.h"
#include "tests/expect.h"
#include "tests/failing_memory.h"

namespace tfx::core {

constexpr int kManyWorkers = 96;

// The bytes that one call requests, with many workers.
int64_t BytesOfCall(const std::function<void(const Execution&)>& call) {
  Workspace workspace;
  const ParallelFor on_caller = OnCaller;
  const int64_t before = test::CountAnew();
  const Workspace::Scope scope(workspace);
  workspace.Take<char>(1);  // so that the call's own scopes don't end it
  call(Execution(InstructionSets().front(), kManyWorkers, on_caller, workspace));
  return workspace.held() + test::MostBytesInUse() - before;
}

TEST(BoundedTopKDoesNotMultiplyByWorkers) {
  constexpr int64_t kBatch = 8, kClasses = 400'000;
  const Problem problem(kBatch, 2, kClasses, 10);
  const Bounds bounds(problem.kernel, kClasses, 2);
  Results results(kBatch, 10);
  const int64_t bytes = BytesOfCall(
      [&](const Execution& execution) { Bounded(problem, bounds, execution, &results); });
  EXPECT(bytes <= 9 * kBatch * kClasses / 2 + 60 * 1024 * kBatch * kManyWorkers);
  for (int64_t number : results.num_candidates) EXPECT(number <= kClasses / 8);
}

TEST(ProbedTopKDoesNotMultiplyByWorkers) {
  constexpr int64_t kBatch = 96, kClasses = 200'000;
  const Problem problem(kBatch, 2, kClasses, 10);
  const Lists lists(problem, 4);
  Results results(kBatch, 10);
  const int64_t bytes = BytesOfCall(
      [&](const Execution& execution) { Probed(problem, lists, 4, execution, &results); });
  EXPECT(bytes <= (1 << 26) + (1 << 23));
  EXPECT(results.num_candidates[0] < kClasses);
}

TEST(VotesDoNotMultiplyByWorkers) {
  constexpr int64_t kClasses = 3'000'000, kQueries = 100;
  std::vector<int32_t> entries(kClasses), starts = {0, kClasses}, codes(kQueries), order = {0};
  std::iota(entries.begin(), entries.end(), 0);
  const std::vector<uint32_t> rotations(1);
  std::vector<int64_t> ids(5), votes(5);
  BucketVotes of_op;
  const int64_t bytes = BytesOfCall([&](const Execution& execution) {
    EXPECT(of_op.Candidates({entries.data(), starts.data(), 1, kClasses, 1},
                            {codes.data(), kQueries, 1, order.data(), rotations.data(), 1000, 5, 1},
                            7, execution, ids.data(), votes.data()));
  });
  EXPECT(ids == std::vector<int64_t>({7, 8, 9, 10, 11}));
  EXPECT(votes == std::vector<int64_t>(5, kQueries));
  EXPECT(of_op.held() <= BucketVotes::kMostBytes);
  EXPECT(bytes <= BucketVotes::kMostBytes + 4 * kClasses + (1 << 20));
}

TEST(SearchesThrowWhereMemoryRunsOut) {
  const auto nothing = [] { return true; };
  const Problem problem(3, 8, 3001, 5);
  const Bounds bounds(problem.kernel, 3001, 8);
  const Lists lists(problem, 4);
  Results results(3, 5);
  test::ExpectUnchangedWithoutMemory(
      nothing, [&](const Execution& execution) { Bounded(problem, bounds, execution, &results); });
  test::ExpectUnchangedWithoutMemory(
      nothing, [&](const Execution& execution) { Probed(problem, lists, 4, execution, &results); });
}

}  // namespace tfx::core
