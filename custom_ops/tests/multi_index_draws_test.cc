// SPDX-License-Identifier: Apache-2.0

#include "core/multi_index_draws.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/expect.h"
#include "tests/workers.h"

namespace tfx::core {
namespace {

struct Lists {
  std::vector<int32_t> codes, entries, starts;
  std::vector<int64_t> sums;
  int64_t num_words;

  PairLists Pointers() const {
    return {codes.data(),
            entries.data(),
            starts.data(),
            sums.data(),
            static_cast<int64_t>(codes.size()),
            num_words};
  }
};

// Classes of random pairs, with weights of 1 to 9; some pairs have no class.
Lists MakeLists(int64_t num_words, int64_t num_classes, std::mt19937& random) {
  Lists lists = {{}, {}, {0}, {0}, num_words};
  for (int64_t c = 0; c < num_classes; ++c) {
    lists.codes.push_back(static_cast<int32_t>(random() % (num_words * num_words)));
  }
  for (int32_t pair = 0; pair < num_words * num_words; ++pair) {
    for (int32_t c = 0; c < num_classes; ++c) {
      if (lists.codes[c] != pair) continue;
      lists.entries.push_back(c);
      lists.sums.push_back(lists.sums.back() + 1 + static_cast<int64_t>(random() % 9));
    }
    lists.starts.push_back(static_cast<int32_t>(lists.entries.size()));
  }
  return lists;
}

struct Result {
  bool good;
  std::vector<int64_t> ids;
  std::vector<double> log_probability;
};

Result Draw(const MultiIndexDraws& draws, const Lists& lists, int num_workers) {
  Result result;
  result.ids.resize(draws.batch * draws.num_draws);
  result.log_probability.resize(result.ids.size());
  const Workers workers(InstructionSet::kBaseline, num_workers);
  result.good = draws.Run(lists.Pointers(), workers.execution, result.ids.data(),
                          result.log_probability.data());
  return result;
}

// q of each class, by its definition.
std::vector<double> Distribution(const Lists& lists, const double* first, const double* second) {
  std::vector<double> q(lists.codes.size());
  double sum = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    const int32_t pair = lists.codes[lists.entries[i]];
    const auto weight = static_cast<double>(lists.sums[i + 1] - lists.sums[i]);
    const double score = first[pair / lists.num_words] + second[pair % lists.num_words];
    sum += q[lists.entries[i]] = weight * std::exp(score);
  }
  for (double& each : q) each /= sum;
  return q;
}

void TestDraws(int64_t num_words, int64_t num_classes, int64_t batch) {
  constexpr int64_t kDraws = 20000;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const Lists lists = MakeLists(num_words, num_classes, random);
  std::vector<double> first(batch * num_words), second(first.size()), numbers(batch * kDraws * 3);
  for (double& x : first) x = normal(random);
  for (double& x : second) x = 2 * normal(random);
  for (double& x : numbers) x = uniform(random);
  const MultiIndexDraws draws = {first.data(), second.data(), numbers.data(), batch, kDraws};
  const Result result = Draw(draws, lists, 1);
  EXPECT(result.good);
  for (int64_t i = 0; i < batch; ++i) {
    const std::vector<double> q =
        Distribution(lists, first.data() + i * num_words, second.data() + i * num_words);
    std::vector<int64_t> counts(num_classes);
    for (int64_t s = i * kDraws; s < (i + 1) * kDraws; ++s) {
      ++counts[result.ids[s]];
      EXPECT(std::abs(result.log_probability[s] - std::log(q[result.ids[s]])) < 1e-12);
    }
    for (int64_t c = 0; c < num_classes; ++c) {
      const double error = std::sqrt(kDraws * q[c] * (1 - q[c]));
      EXPECT(std::abs(static_cast<double>(counts[c]) - kDraws * q[c]) < 5 * error + 3);
    }
  }
  const Result again = Draw(draws, lists, 3);
  EXPECT(again.ids == result.ids && again.log_probability == result.log_probability);
}

// Scores without a sum have no draws, and the others theirs.
TEST(TestNoNumbers) {
  std::mt19937 random(5);
  const Lists lists = MakeLists(2, 9, random);
  const double kNan = std::nan(""), kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> first = {0, kNan, 0, 0, kInfinity, 0, -1e9, -1e9};
  const std::vector<double> second(8), numbers(4 * 6, 0.5);
  const Result result = Draw({first.data(), second.data(), numbers.data(), 4, 2}, lists, 1);
  EXPECT(result.good);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT((result.ids[i] >= 0) == (i == 2 || i == 3));
    EXPECT(result.ids[i] >= 0 || result.log_probability[i] == 0);
  }
}

// Numbers next to 1 choose the last class, if there is one, however many pairs are empty.
TEST(TestEnds) {
  std::mt19937 random(6);
  Lists lists = MakeLists(3, 4, random);
  lists.codes = {1, 1, 3, 3};
  lists.entries = {0, 1, 2, 3};
  lists.starts = {0, 0, 2, 2, 4, 4, 4, 4, 4, 4};
  lists.sums = {0, 1, 4, 5, 9};
  const std::vector<double> scores(3);
  const double last = std::nextafter(1.0, 0.0);
  const std::vector<double> numbers = {0, 0, 0, last, last, last, 0, last, last};
  const Result result = Draw({scores.data(), scores.data(), numbers.data(), 1, 3}, lists, 1);
  EXPECT(result.good && result.ids == std::vector<int64_t>({0, 3, 1}));
}

TEST(TestDamage) {
  std::mt19937 random(8);
  const Lists good = MakeLists(2, 30, random);
  EXPECT(AreLists(good.Pointers()));
  const std::vector<double> scores(2);
  std::vector<double> numbers(3 * 500);
  std::uniform_real_distribution<double> uniform;
  for (double& x : numbers) x = uniform(random);
  const auto is_drawn = [&](const Lists& lists) {
    return Draw({scores.data(), scores.data(), numbers.data(), 1, 500}, lists, 1).good;
  };
  EXPECT(is_drawn(good));
  for (int32_t value : {-1, 30, std::numeric_limits<int32_t>::max()}) {
    Lists lists = good;
    lists.starts[2] = value;
    EXPECT(!AreLists(lists.Pointers()));
    lists = good;
    lists.entries[7] = value;
    EXPECT(AreLists(lists.Pointers()) && !is_drawn(lists));
    lists = good;
    lists.codes[7] = value;
    EXPECT(!is_drawn(lists));
  }
  Lists lists = good;
  lists.sums[lists.starts[1]] = std::numeric_limits<int64_t>::min() / 2;
  EXPECT(!AreLists(lists.Pointers()));
}

TEST(All) {
  TestDraws(1, 5, 2);
  TestDraws(3, 40, 3);
  TestDraws(8, 300, 17);
  TestDraws(17, 40, 1);
}

}  // namespace
}  // namespace tfx::core
