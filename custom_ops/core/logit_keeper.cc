// SPDX-License-Identifier: Apache-2.0

#include "core/logit_keeper.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/keep_random.h"

namespace tfx::core {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kSmallestRoom = 1 << 14;  // entries
constexpr int64_t kMostRoomAtFirst = 1 << 20;

// Leaves the entries whose key is above log_z[lane] + shift.
int64_t Thin(KeptLogit* entries, int64_t size, const float* log_z, float shift) {
  const auto goes = [=](const KeptLogit& e) { return !(e.key > log_z[e.lane] + shift); };
  return std::remove_if(entries, entries + size, goes) - entries;
}

}  // namespace

int64_t KeptProbabilities::MostOfAnExample() const {
  int64_t most = 0;
  for (size_t i = 1; i < begin.size(); ++i) most = std::max(most, begin[i] - begin[i - 1]);
  return most;
}

LogitKeeper::LogitKeeper(const KeepRule& rule, int64_t batch, int64_t lanes, int64_t num_workers)
    : rule_(rule), batch_(batch), keys_(lanes), workers_(num_workers), bounds_(lanes, -kInfinity) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    keys_[lane] = KeyOfExample(rule.seed[0], rule.seed[1], lane);
  }
  const int64_t expected = 2 * rule.num_expected * batch / std::max<int64_t>(num_workers, 1);
  for (Worker& worker : workers_) {
    worker.memory.resize(std::clamp(expected, kSmallestRoom, kMostRoomAtFirst));
    worker.entries = worker.memory.data();
    worker.size = 0;
    worker.capacity = worker.memory.size();
    worker.make_room = MakeRoom;
    worker.log_epsilon = std::log(rule.epsilon);
  }
}

const float* LogitKeeper::BoundsFor(int64_t worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<float>& bounds = workers_[worker].bounds;
  bounds.resize(bounds_.size());
  for (size_t lane = 0; lane < bounds_.size(); ++lane) {
    // Less what rounding to float may do to comparisons.
    const double slack = 1e-4 + 1e-6 * std::abs(bounds_[lane]);
    bounds[lane] = std::isfinite(bounds_[lane]) ? bounds_[lane] - slack : bounds_[lane];
  }
  return bounds.data();
}

void LogitKeeper::AddChunk(const float* max, const float* sum) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int64_t lane = 0; lane < batch_; ++lane) {
    const double of_chunk = std::min(max[lane], FLT_MAX) + std::log(double{sum[lane]});
    const double larger = std::max(bounds_[lane], of_chunk);
    const double smaller = std::min(bounds_[lane], of_chunk);
    if (std::isfinite(larger)) bounds_[lane] = larger + std::log1p(std::exp(smaller - larger));
  }
}

void LogitKeeper::MakeRoom(KeptLogits* kept, int64_t more) {
  Worker* worker = static_cast<Worker*>(kept);
  worker->size = Thin(worker->entries, worker->size, worker->bounds.data(), worker->log_epsilon);
  if (worker->size + more <= worker->capacity - worker->capacity / 4) return;
  worker->memory.resize(worker->capacity + std::max(worker->capacity / 2, more));
  worker->entries = worker->memory.data();
  worker->capacity = worker->memory.size();
}

KeptProbabilities LogitKeeper::Finish(const float* log_z, const int64_t* labels, int64_t num_labels,
                                      const ClassShard& shard, const ParallelFor& parallel_for) {
  const auto is_label = [&](const KeptLogit& e) {
    const int64_t* begin = labels + e.lane * num_labels;
    return std::find(begin, begin + num_labels, shard.ClassOf(e.row)) != begin + num_labels;
  };
  const auto thin = [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      Worker& worker = workers_[w];
      const int64_t size = Thin(worker.entries, worker.size, log_z, worker.log_epsilon);
      worker.size =
          std::remove_if(worker.entries, worker.entries + size, is_label) - worker.entries;
    }
  };
  const int64_t num_workers = workers_.size();
  parallel_for(num_workers, thin, 20 * rule_.num_expected * batch_);

  KeptProbabilities result;
  result.begin.assign(batch_ + 1, 0);
  for (const Worker& worker : workers_) {
    for (int64_t i = 0; i < worker.size; ++i) ++result.begin[worker.entries[i].lane + 1];
  }
  std::partial_sum(result.begin.begin(), result.begin.end(), result.begin.begin());
  sorted_.resize(result.begin.back());
  std::vector<int64_t> next(result.begin.begin(), result.begin.end() - 1);
  for (const Worker& worker : workers_) {
    for (int64_t i = 0; i < worker.size; ++i) {
      sorted_[next[worker.entries[i].lane]++] = worker.entries[i];
    }
  }
  result.ids.resize(sorted_.size());
  for (std::vector<float>* values : {&result.weights, &result.logits, &result.keys}) {
    values->resize(sorted_.size());
  }
  const auto sort = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) SortExample(i, log_z, shard, &result);
  };
  parallel_for(batch_, sort, 100 * rule_.num_expected);
  return result;
}

void LogitKeeper::SortExample(int64_t example, const float* log_z, const ClassShard& shard,
                              KeptProbabilities* result) {
  KeptLogit* entries = sorted_.data();
  const int64_t begin = result->begin[example], end = result->begin[example + 1];
  std::sort(entries + begin, entries + end,
            [](const KeptLogit& a, const KeptLogit& b) { return a.row < b.row; });
  for (int64_t i = begin; i < end; ++i) {
    result->ids[i] = shard.ClassOf(entries[i].row);
    const float p = std::exp(entries[i].logit - log_z[example]);
    result->weights[i] = std::max(p, rule_.epsilon);
    result->logits[i] = entries[i].logit;
    result->keys[i] = entries[i].key;
  }
}

}  // namespace tfx::core
