// SPDX-License-Identifier: Apache-2.0
//
// Collects the entries that the workers of a pass over all classes keep: see core/kept_logits.h.

#ifndef TFX_LARGEOUT_CORE_LOGIT_KEEPER_H_
#define TFX_LARGEOUT_CORE_LOGIT_KEEPER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/class_shard.h"
#include "core/execution.h"
#include "core/kept_logits.h"

namespace tfx::core {

struct KeepRule {
  uint64_t seed[2];
  float epsilon;         // in [0, 1]
  int64_t num_expected;  // expected number of entries per example
};

// The kept entries: example by example, by rising class.
struct KeptProbabilities {
  std::vector<int64_t> begin;  // [B + 1]: start of each example's entries
  std::vector<int64_t> ids;
  std::vector<float> weights;  // max(p, epsilon)
  std::vector<float> logits;
  std::vector<float> keys;  // logit - log u: see core/kept_logits.h

  int64_t MostOfAnExample() const;
};

class LogitKeeper {
 public:
  // `lanes` of the pass are the examples, in order, and unused lanes.
  // REQUIRES: the memory of `execution` outlives this object.
  LogitKeeper(const KeepRule& rule, int64_t batch, int64_t lanes, int64_t num_workers,
              const Execution& execution);

  // [lanes]: random numbers, one per example.
  const uint32_t* keys() const { return keys_; }

  // Called by a worker before each chunk: lower bounds of log Z, by lane, until the next call.
  const float* BoundsFor(int64_t worker);

  KeptLogits* KeptBy(int64_t worker) { return &workers_[worker]; }

  // Called after a chunk: its sums of exponentials are sum * exp(min(max, FLT_MAX)), by lane.
  void AddChunk(const float* max, const float* sum);

  // Drops the excess of kept entries, now that log Z [B] is known. Labels [B, num_labels] are left
  // out. Also throws OutOfMemory if a worker had no room for entries.
  KeptProbabilities Finish(const float* log_z, const int64_t* labels, int64_t num_labels,
                           const ClassShard& shard);

 private:
  struct Worker : KeptLogits {
    std::unique_ptr<KeptLogit[]> memory;  // if the first memory is not enough
    float* bounds;
    float log_epsilon;
    int64_t missing_bytes = 0;  // missing room; entries are lost
  };

  static void MakeRoom(KeptLogits* kept, int64_t more);
  void SortExample(int64_t example, const float* log_z, const ClassShard& shard, KeptLogit* sorted,
                   KeptProbabilities* result) const;

  const KeepRule rule_;
  const int64_t batch_;
  const int64_t lanes_;
  const Execution& execution_;
  uint32_t* const keys_;
  std::vector<Worker> workers_;
  std::mutex mutex_;
  double* const bounds_;  // guarded by mutex_ while workers run
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_LOGIT_KEEPER_H_
