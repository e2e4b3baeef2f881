// SPDX-License-Identifier: Apache-2.0

#include "core/bucket_candidates.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/radix_sort.h"

namespace tfx::core {
namespace {

constexpr int64_t kExamplesOfTask = 8;

// Calls visit(class, turn) for the entries of example i's buckets, as long as it returns true.
// Returns false if something is corrupt.
template <typename Visit>
bool VisitBuckets(const HashTables& tables, const BucketQueries& queries, int64_t i,
                  const Visit& visit) {
  const int64_t num_tables = tables.num_tables;
  const int64_t buckets_of_range = tables.num_buckets / queries.num_ranges;
  for (int64_t at = 0; at < queries.num_ranges * num_tables; ++at) {
    const int64_t first_bucket = at / num_tables * buckets_of_range;
    const int64_t t = queries.order[at % num_tables];
    const int32_t* entries = tables.Entries(t);
    for (int64_t q = 0; q < queries.num_queries; ++q) {
      const int32_t code = queries.codes[(i * queries.num_queries + q) * num_tables + t];
      if (code < 0) continue;
      const int32_t* starts = tables.Starts(t) + first_bucket + code;
      const int64_t begin = starts[0], end = starts[1];
      if (begin < 0 || begin > end || end > tables.num_classes) return false;
      const int64_t size = end - begin;
      int64_t place = begin + ((queries.rotations[t] * size) >> 32);
      for (int64_t left = std::min(size, queries.most_of_bucket); left > 0; --left) {
        const int32_t c = entries[place];
        if (c < 0 || c >= tables.num_classes) return false;
        if (!visit(static_cast<uint32_t>(c), at)) return true;
        if (++place == end) place = begin;
      }
    }
  }
  return true;
}

// A set of classes, of limited size.
class ClassSet {
 public:
  static int64_t RoomFor(int64_t most) {
    int64_t room = 16;
    while (room < 2 * most) room *= 2;
    return room;
  }

  ClassSet(uint32_t* slots, int64_t room) : slots_(slots), mask_(room - 1) {
    std::memset(slots_, 0xff, room * sizeof(*slots_));
  }

  // Returns false if the class is there already.
  bool Insert(uint32_t c) {
    for (uint64_t at = (c * 0x9e3779b97f4a7c15u >> 32) & mask_;; at = (at + 1) & mask_) {
      if (slots_[at] == c) return false;
      if (slots_[at] == kFree) {
        slots_[at] = c;
        return true;
      }
    }
  }

 private:
  static constexpr uint32_t kFree = 0xffffffff;

  uint32_t* slots_;
  uint64_t mask_;
};

// `places` has room for 2 n.
void Sort(int64_t* ids, int64_t n, int64_t num_classes, ClassPlace* places) {
  for (int64_t i = 0; i < n; ++i) places[i] = {static_cast<uint32_t>(ids[i]), 0};
  SortByClass(places, places + n, n, BitsOfClasses(num_classes));
  for (int64_t i = 0; i < n; ++i) ids[i] = places[i].class_id;
}

// Longer, and it is as quick to look at all classes.
int64_t ClassesOfList(int64_t num_classes) { return num_classes / 8 + 1; }

int64_t BytesOfVoter(int64_t num_classes) {
  return (num_classes + ClassesOfList(num_classes)) * static_cast<int64_t>(sizeof(uint32_t));
}

}  // namespace

bool OwnBucketCandidates(const HashTables& tables, const BucketQueries& queries,
                         const Execution& execution, int64_t* ids, int64_t* turns) {
  const int64_t budget = queries.budget, room = ClassSet::RoomFor(budget);
  uint32_t* slots = execution.workspace.Take<uint32_t>(execution.num_workers * room);
  std::atomic<bool> good{true};
  const auto work = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      ClassSet seen(slots + worker * room, room);
      int64_t* own = ids + i * budget;
      int64_t* own_turns = turns == nullptr ? nullptr : turns + i * budget;
      int64_t n = 0;
      if (!VisitBuckets(tables, queries, i, [&](uint32_t c, int64_t turn) {
            if (seen.Insert(c)) {
              if (own_turns != nullptr) own_turns[n] = turn;
              own[n++] = c;
            }
            return n < budget;
          })) {
        good = false;
      }
      std::fill(own + n, own + budget, -1);
      if (own_turns == nullptr) continue;
      std::fill(own_turns + n, own_turns + budget, queries.num_ranges * tables.num_tables);
    }
  };
  execution.Run({{"visit buckets", {InBlocks(queries.size, kExamplesOfTask, work)}}});
  return good;
}

int BucketVotes::NumVoters(int64_t num_classes, int num_workers) {
  const int64_t bytes = BytesOfVoter(num_classes);
  return static_cast<int>(std::min<int64_t>(std::max<int64_t>(kMostBytes / bytes, 2), num_workers));
}

int64_t BucketVotes::held() const {
  int64_t entries = 0;
  for (const Voter& voter : voters_) entries += voter.votes.capacity() + voter.classes.capacity();
  return entries * static_cast<int64_t>(sizeof(uint32_t));
}

// All of it stays 0, also if memory runs out.
void BucketVotes::MakeRoom(int64_t num_classes, int num_voters) {
  if (static_cast<int>(voters_.size()) < num_voters) voters_.resize(num_voters);
  for (int v = 0; v < num_voters; ++v) {
    Voter& voter = voters_[v];
    if (static_cast<int64_t>(voter.votes.size()) >= num_classes) continue;
    voter.votes = {};
    voter.classes = {};
    Assign<uint32_t>(&voter.classes, ClassesOfList(num_classes), 0);
    Assign<uint32_t>(&voter.votes, num_classes, 0);
  }
}

bool BucketVotes::Candidates(const HashTables& tables, const BucketQueries& queries,
                             int64_t first_class, const Execution& execution, int64_t* ids,
                             int64_t* votes) {
  const Workspace::Scope scope(execution.workspace);
  const int64_t num_classes = tables.num_classes;
  const int num_voters = NumVoters(num_classes, execution.num_workers);
  MakeRoom(num_classes, num_voters);
  auto* room = execution.Take<uint32_t>(num_classes);
  auto* places = execution.Take<ClassPlace>(2 * queries.budget);
  std::atomic<bool> good{true};
  const auto vote = [&](int64_t begin, int64_t end, int worker) {
    Voter& voter = voters_[worker];
    for (int64_t i = begin; i < end; ++i) {
      if (!VisitBuckets(tables, queries, i, [&](uint32_t c, int64_t) {
            voter.Vote(c, 1);
            return true;
          })) {
        good = false;
      }
    }
  };
  RunPhases({{"visit buckets", {InBlocks(queries.size, kExamplesOfTask, vote)}}}, num_voters,
            execution.parallel_for);
  const int64_t n = Elect(num_voters, queries, first_class, num_classes, room, ids);
  Sort(ids, n, num_classes, places);
  std::fill(ids + n, ids + queries.budget, -1);
  Voter& all = voters_[0];
  if (votes != nullptr) {
    std::transform(ids, ids + n, votes, [&](int64_t c) { return int64_t{all.votes[c]}; });
    std::fill(votes + n, votes + queries.budget, 0);
  }
  all.ForClasses(num_classes, [&](uint32_t c) { all.votes[c] = 0; });
  all.num_classes = 0;
  return good;
}

int64_t BucketVotes::Elect(int num_voters, const BucketQueries& queries, int64_t first_class,
                           int64_t num_classes, uint32_t* room, int64_t* ids) {
  Voter& all = voters_[0];
  for (int v = 1; v < num_voters; ++v) {
    Voter& voter = voters_[v];
    voter.ForClasses(num_classes,
                     [&](uint32_t c) { all.Vote(c, std::exchange(voter.votes[c], 0)); });
    voter.num_classes = 0;
  }
  uint32_t* end = room;
  all.ForClasses(num_classes, [&](uint32_t c) { *end++ = c; });
  const std::vector<uint32_t>& votes = all.votes;
  const auto place = [&](uint32_t c) { return (c - first_class + num_classes) % num_classes; };
  const auto before = [&](uint32_t a, uint32_t b) {
    return votes[a] != votes[b] ? votes[a] > votes[b] : place(a) < place(b);
  };
  const auto n = std::min<int64_t>(queries.budget, end - room);
  std::nth_element(room, room + n, end, before);
  std::copy_n(room, n, ids);
  return n;
}

}  // namespace tfx::core
