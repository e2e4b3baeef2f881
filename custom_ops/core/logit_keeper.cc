// SPDX-License-Identifier: Apache-2.0

#include "core/logit_keeper.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

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

LogitKeeper::LogitKeeper(const KeepRule& rule, int64_t batch, int64_t lanes, int64_t num_workers,
                         const Execution& execution)
    : rule_(rule),
      batch_(batch),
      lanes_(lanes),
      execution_(execution),
      keys_(execution.Take<uint32_t>(lanes)),
      workers_(num_workers),
      bounds_(execution.Take<double>(lanes)) {
  std::fill_n(bounds_, lanes, -kInfinity);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    keys_[lane] = KeyOfExample(rule.seed[0], rule.seed[1], lane);
  }
  const int64_t expected = 2 * rule.num_expected * batch / std::max<int64_t>(num_workers, 1);
  for (Worker& worker : workers_) {
    worker.capacity = std::clamp(expected, kSmallestRoom, kMostRoomAtFirst);
    worker.entries = execution.Take<KeptLogit>(worker.capacity);
    worker.size = 0;
    worker.make_room = MakeRoom;
    worker.bounds = execution.Take<float>(lanes);
    worker.log_epsilon = std::log(rule.epsilon);
  }
}

const float* LogitKeeper::BoundsFor(int64_t worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  float* bounds = workers_[worker].bounds;
  for (int64_t lane = 0; lane < lanes_; ++lane) {
    // Minus the effect of rounding to float on comparisons.
    const double slack = 1e-4 + 1e-6 * std::abs(bounds_[lane]);
    bounds[lane] = std::isfinite(bounds_[lane]) ? bounds_[lane] - slack : bounds_[lane];
  }
  return bounds;
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

// On a worker's thread: missing memory is recorded, and Finish throws.
void LogitKeeper::MakeRoom(KeptLogits* kept, int64_t more) {
  Worker* worker = static_cast<Worker*>(kept);
  worker->size = Thin(worker->entries, worker->size, worker->bounds, worker->log_epsilon);
  if (worker->size + more <= worker->capacity - worker->capacity / 4) return;
  const int64_t capacity = worker->capacity + std::max(worker->capacity / 2, more);
  std::unique_ptr<KeptLogit[]> memory(new (std::nothrow) KeptLogit[capacity]);
  if (memory == nullptr) {
    worker->missing_bytes = capacity * static_cast<int64_t>(sizeof(KeptLogit));
    worker->size = 0;
    return;
  }
  std::copy_n(worker->entries, worker->size, memory.get());
  worker->memory = std::move(memory);
  worker->entries = worker->memory.get();
  worker->capacity = capacity;
}

KeptProbabilities LogitKeeper::Finish(const float* log_z, const int64_t* labels, int64_t num_labels,
                                      const ClassShard& shard) {
  for (const Worker& worker : workers_) {
    if (worker.missing_bytes > 0) throw OutOfMemory(worker.missing_bytes);
  }
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
  execution_.parallel_for(num_workers, thin, 20 * rule_.num_expected * batch_);

  KeptProbabilities result;
  Assign<int64_t>(&result.begin, batch_ + 1, 0);
  for (const Worker& worker : workers_) {
    for (int64_t i = 0; i < worker.size; ++i) ++result.begin[worker.entries[i].lane + 1];
  }
  std::partial_sum(result.begin.begin(), result.begin.end(), result.begin.begin());
  const int64_t size = result.begin.back();
  KeptLogit* sorted = execution_.Take<KeptLogit>(size);
  int64_t* next = execution_.Take<int64_t>(batch_);
  std::copy_n(result.begin.begin(), batch_, next);
  for (const Worker& worker : workers_) {
    for (int64_t i = 0; i < worker.size; ++i) {
      sorted[next[worker.entries[i].lane]++] = worker.entries[i];
    }
  }
  Assign<int64_t>(&result.ids, size, 0);
  for (std::vector<float>* values : {&result.weights, &result.logits, &result.keys}) {
    Assign(values, size, 0.0f);
  }
  const auto sort = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) SortExample(i, log_z, shard, sorted, &result);
  };
  execution_.parallel_for(batch_, sort, 100 * rule_.num_expected);
  return result;
}

void LogitKeeper::SortExample(int64_t example, const float* log_z, const ClassShard& shard,
                              KeptLogit* entries, KeptProbabilities* result) const {
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
