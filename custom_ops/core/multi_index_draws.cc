// SPDX-License-Identifier: Apache-2.0

#include "core/multi_index_draws.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

namespace tfx::core {
namespace {

constexpr int64_t kExamplesOfTask = 8;
constexpr int64_t kGroup = 8;  // words

// Returns how many of n rising numbers are at most x, without a branch for each.
template <typename T>
int64_t UpperBound(const T* rising, int64_t n, T x) {
  const T* begin = rising;
  while (n > 1) {
    const int64_t half = n / 2;
    begin += begin[half - 1] <= x ? half : 0;
    n -= half;
  }
  return begin - rising + (n == 1 && *begin <= x);
}

// Returns a place among sums of numbers that are not below 0, and not all 0.
int64_t Choose(const double* sums, int64_t n, double uniform) {
  return std::min(UpperBound(sums, n, uniform * sums[n - 1]), n - 1);
}

// A worker's memory for an example.
struct Room {
  Room(int64_t num_words, int64_t num_draws, const Execution& execution)
      : second(execution.Take<double>(num_words)),
        first_sums(execution.Take<double>(num_words)),
        second_sums(execution.Take<double>(num_words)),
        ends(execution.Take<int64_t>(num_words + 1)),
        first_words(execution.Take<int64_t>(num_draws)),
        order(execution.Take<int64_t>(num_draws)) {}

  double* second;        // exp(second[k2])
  double* first_sums;    // of P(k1) Z
  double* second_sums;   // of P(k2 | k1), times something
  int64_t* ends;         // where in order the draws of each k1 end
  int64_t* first_words;  // k1 of each draw
  int64_t* order;        // draws by k1
};

class Draws {
 public:
  Draws(const MultiIndexDraws& draws, const PairLists& lists, const Execution& execution,
        int64_t* ids, double* log_probability)
      : draws_(draws),
        lists_(lists),
        num_words_(lists.num_words),
        masses_(execution.Take<double>(num_words_ * num_words_)),
        by_second_(execution.Take<double>(num_words_ * num_words_)),
        ids_(ids),
        log_probability_(log_probability) {
    for (int64_t k1 = 0; k1 < num_words_; ++k1) {
      for (int64_t k2 = 0; k2 < num_words_; ++k2) {
        const int32_t* at = lists.starts + k1 * num_words_ + k2;
        const auto mass = static_cast<double>(lists.sums[at[1]] - lists.sums[at[0]]);
        masses_[k1 * num_words_ + k2] = by_second_[k2 * num_words_ + k1] = mass;
      }
    }
  }

  // Returns whether the lists have the classes that were drawn.
  bool DrawExample(int64_t example, Room& room) const {
    const double* first = draws_.first + example * num_words_;
    const double* second = draws_.second + example * num_words_;
    int64_t* ids = ids_ + example * draws_.num_draws;
    double* log_probability = log_probability_ + example * draws_.num_draws;
    const double partition = SumPairs(first, second, room);
    if (!(std::isfinite(partition) && partition > 0)) {
      std::fill_n(ids, draws_.num_draws, -1);
      std::fill_n(log_probability, draws_.num_draws, 0.0);
      return true;
    }
    const double* uniform = draws_.uniform + 3 * example * draws_.num_draws;
    DrawFirstWords(uniform, room);
    const double log_partition = std::log(partition);
    bool good = true;
    for (int64_t k1 = 0, next = 0; k1 < num_words_; ++k1) {
      if (next == room.ends[k1]) continue;
      SumSecondWords(masses_ + k1 * num_words_, room);
      for (; next < room.ends[k1]; ++next) {
        const int64_t draw = room.order[next];
        const int64_t k2 = Choose(room.second_sums, num_words_, uniform[3 * draw + 1]);
        int64_t weight = 1;
        ids[draw] = Member(k1 * num_words_ + k2, uniform[3 * draw + 2], &weight);
        good = good && ids[draw] >= 0;
        log_probability[draw] =
            first[k1] + second[k2] + std::log(static_cast<double>(weight)) - log_partition;
      }
    }
    return good;
  }

 private:
  // Sets room.second and room.first_sums; returns Z.
  double SumPairs(const double* first, const double* second, Room& room) const {
    std::fill_n(room.first_sums, num_words_, 0.0);
    for (int64_t k2 = 0; k2 < num_words_; ++k2) {
      const double factor = room.second[k2] = std::exp(second[k2]);
      const double* masses = by_second_ + k2 * num_words_;
      for (int64_t k1 = 0; k1 < num_words_; ++k1) room.first_sums[k1] += factor * masses[k1];
    }
    double sum = 0;
    for (int64_t k1 = 0; k1 < num_words_; ++k1) {
      room.first_sums[k1] = sum += std::exp(first[k1]) * room.first_sums[k1];
    }
    return sum;
  }

  // Sets room.second_sums. Sums of groups don't wait for each other.
  void SumSecondWords(const double* masses, Room& room) const {
    for (int64_t begin = 0; begin < num_words_; begin += kGroup) {
      double sum = 0;
      for (int64_t k = begin; k < std::min(begin + kGroup, num_words_); ++k) {
        room.second_sums[k] = sum += masses[k] * room.second[k];
      }
    }
    for (int64_t begin = kGroup; begin < num_words_; begin += kGroup) {
      const double before = room.second_sums[begin - 1];
      for (int64_t k = begin; k < std::min(begin + kGroup, num_words_); ++k) {
        room.second_sums[k] += before;
      }
    }
  }

  void DrawFirstWords(const double* uniform, Room& room) const {
    std::fill_n(room.ends, num_words_ + 1, 0);
    for (int64_t s = 0; s < draws_.num_draws; ++s) {
      room.first_words[s] = Choose(room.first_sums, num_words_, uniform[3 * s]);
      ++room.ends[room.first_words[s] + 1];
    }
    for (int64_t k = 0; k < num_words_; ++k) room.ends[k + 1] += room.ends[k];
    // ends[k] is at first the start of the draws of k, and moves to their end.
    for (int64_t s = 0; s < draws_.num_draws; ++s) room.order[room.ends[room.first_words[s]]++] = s;
  }

  // Returns a class of a pair and its weight, or -1 if the lists are not right.
  int64_t Member(int64_t pair, double uniform, int64_t* weight) const {
    const int32_t* starts = lists_.starts + pair;
    const int64_t begin = lists_.sums[starts[0]], mass = lists_.sums[starts[1]] - begin;
    if (mass <= 0) return -1;
    const auto within = static_cast<int64_t>(uniform * static_cast<double>(mass));
    const int64_t place = starts[0] + UpperBound(lists_.sums + starts[0] + 1, starts[1] - starts[0],
                                                 begin + std::min(within, mass - 1));
    if (place >= starts[1]) return -1;
    *weight = lists_.sums[place + 1] - lists_.sums[place];
    const int64_t id = lists_.entries[place];
    const bool is_right =
        id >= 0 && id < lists_.num_classes && lists_.codes[id] == pair && *weight > 0;
    return is_right ? id : -1;
  }

  const MultiIndexDraws& draws_;
  const PairLists& lists_;
  const int64_t num_words_;
  double* masses_;     // N [k1, k2]
  double* by_second_;  // N [k2, k1]
  int64_t* ids_;
  double* log_probability_;
};

}  // namespace

bool AreLists(const PairLists& lists) {
  const int64_t num_pairs = lists.num_words * lists.num_words;
  if (lists.starts[0] != 0 || lists.starts[num_pairs] != lists.num_classes) return false;
  constexpr int64_t kMost = int64_t{1} << 61;  // so that differences don't overflow
  if (std::any_of(lists.sums, lists.sums + lists.num_classes + 1,
                  [](int64_t sum) { return sum < 0 || sum > kMost; })) {
    return false;
  }
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    if (lists.starts[pair + 1] < lists.starts[pair]) return false;
  }
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const int32_t* at = lists.starts + pair;
    if ((lists.sums[at[1]] > lists.sums[at[0]]) != (at[1] > at[0])) return false;
  }
  return true;
}

bool MultiIndexDraws::Run(const PairLists& lists, const Execution& execution, int64_t* ids,
                          double* log_probability) const {
  if (batch == 0 || num_draws == 0) return true;
  const Workspace::Scope scope(execution.workspace);
  const Draws draws(*this, lists, execution, ids, log_probability);
  std::vector<Room> rooms;
  for (int w = 0; w < execution.num_workers; ++w) {
    rooms.emplace_back(lists.num_words, num_draws, execution);
  }
  std::atomic<bool> good{true};
  const auto work = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      if (!draws.DrawExample(i, rooms[worker])) good = false;
    }
  };
  execution.Run({{"draw", {InBlocks(batch, kExamplesOfTask, work)}}});
  return good;
}

}  // namespace tfx::core
