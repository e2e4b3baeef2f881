// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/softmax_selection.h"

#include <algorithm>
#include <cmath>

#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/own_logits.h"
#include "core/gpu/streamed_softmax.h"
#include "core/keep_random.h"
#include "core/kept_logits.h"

namespace tfx::core::gpu {
namespace {

// The smallest number of examples for which a block of classes is sized: each example has a
// separate block of threads, which reads all of the classes.
constexpr int64_t kFewestExamples = 256;
constexpr size_t kSharedBytes = sizeof(SoftmaxTerms) * kWarps;

// The results so far, by example.
struct Found {
  SoftmaxTerms* terms;
  int64_t* sizes;      // how many entries are kept
  int64_t* needed;     // how many there were to keep at a time
  KeptLogit* entries;  // [B, room]
};

struct Memory {
  Memory(const SoftmaxSelectionInputs& in, int64_t room, Scratch* scratch)
      : size(ClassesAtATime(in.layer.weights.num_classes,
                            std::max(NumbersOfClass(in.layer.weights, in.layer.batch, in.precision),
                                     kFewestExamples),
                            in.numbers_at_a_time)),
        blocks(in.layer.weights, in.layer.hidden, in.layer.batch, size, in.precision, scratch),
        logits(scratch->Take<float>(in.layer.batch * size)) {
    const int64_t batch = in.layer.batch;
    found.terms = scratch->Take<SoftmaxTerms>(batch);
    found.sizes = scratch->Take<int64_t>(batch);
    found.needed = scratch->Take<int64_t>(batch);
    found.entries = scratch->Take<KeptLogit>(batch * room);
  }

  int64_t size;  // classes of a block
  ClassBlocks blocks;
  float* logits;  // [B, size]
  Found found;
};

// The selected entries, and their keys.
struct Rule {
  explicit Rule(const KeepRule* keep)
      : epsilon(keep == nullptr ? 1 : keep->epsilon), log_epsilon(std::log(epsilon)) {}

  // By log Z, or a bound of it.
  __device__ bool Keeps(float logit, float key, float log_z) const {
    return key > log_z + log_epsilon && (epsilon > 0 || expf(logit - log_z) > 0);
  }

  float epsilon, log_epsilon;
};

// A random number of 31 bits for an example and a class.
__device__ uint32_t RandomBits(uint32_t key_of_example, uint32_t id) {
  id = (id ^ (id >> 16)) * 0x7feb352du;
  id = (id ^ (id >> 15)) * 0x846ca68bu;
  id ^= id >> 16;
  uint32_t x = (key_of_example ^ id) * 0x9e3779b1u;
  x = (x ^ (x >> 15)) * 0x85ebca77u;
  return x >> 1;
}

// log u of the random number u = (bits + 1/2) / 2^31, in (0, 1].
__device__ float LogRandom(uint32_t bits) {
  return logf((static_cast<float>(static_cast<int32_t>(bits)) + 0.5f) * 0x1p-31f);
}

// A lower bound of log Z by terms of it. It is less by more than what rounding does to comparisons.
__device__ float BoundOf(const SoftmaxTerms& terms) {
  const float bound = LogOfSum(static_cast<float>(terms.sum), terms.maximum);
  return isfinite(bound) ? bound - (1e-4f + 1e-6f * fabsf(bound)) : bound;
}

// The work of a block of threads on the entries of its example.
class Entries {
 public:
  __device__ Entries(const SoftmaxSelectionInputs& in, const Rule& rule, const Found& found,
                     int64_t room, unsigned char* shared)
      : in_(in.layer),
        rule_(rule),
        room_(room),
        shared_(static_cast<uint32_t*>(static_cast<void*>(shared))),
        i_(blockIdx.x),
        size_(found.sizes[i_]),
        needed_(found.needed[i_]),
        entries_(found.entries + i_ * room) {}

  // Keeps entries of a chunk of classes, which follow on those kept so far, by a bound of log Z.
  __device__ void Keep(const OwnLogits& own, uint32_t key_of_example, float bound) {
    const unsigned kept = Kept(own, key_of_example, bound);
    uint32_t total;
    const uint32_t before = SumBefore(static_cast<uint32_t>(__popc(kept)), shared_, &total);
    if (total == 0) return;
    if (size_ + total > room_) {
      Thin([&](const KeptLogit& e) { return rule_.Keeps(e.logit, e.key, bound); });
    }
    Write(own, key_of_example, kept, size_ + __shfl_sync(~0u, before, 0));
    size_ += total;
    needed_ = needed_ < size_ ? size_ : needed_;
    size_ = size_ < room_ ? size_ : room_;
  }

  // Keeps the entries that log Z selects, without labels.
  __device__ void Finish(float log_z) {
    const int64_t* labels = in_.labels + i_ * in_.num_labels;
    Thin([&](const KeptLogit& e) {
      if (!rule_.Keeps(e.logit, e.key, log_z)) return false;
      const int64_t id = in_.shard.ClassOf(e.row);
      for (int64_t k = 0; k < in_.num_labels; ++k) {
        if (labels[k] == id) return false;
      }
      return true;
    });
  }

  __device__ void Save(const Found& found) const {
    if (threadIdx.x != 0) return;
    found.sizes[i_] = size_;
    found.needed[i_] = needed_;
  }

 private:
  __device__ uint32_t BitsOf(const OwnLogits& own, int j, uint32_t key_of_example) const {
    return RandomBits(key_of_example, static_cast<uint32_t>(in_.shard.ClassOf(own.Row(j))));
  }

  __device__ KeptLogit EntryOf(const OwnLogits& own, int j, uint32_t key_of_example) const {
    const float logit = own.FromMemory(j);
    const float key = logit - LogRandom(BitsOf(own, j, key_of_example));
    return {static_cast<int32_t>(i_), static_cast<int32_t>(own.Row(j)), logit, key};
  }

  // Which own logits are kept, as bits.
  __device__ unsigned Kept(const OwnLogits& own, uint32_t key_of_example, float bound) const {
    // A logit is kept if log u < o - log Z - log epsilon. The maximum in place of o gives a limit
    // of u for all, up to rounding. Few are below it.
    const float log_z = bound + rule_.log_epsilon;
    const float log_limit = own.maximum() - log_z + 1e-4f + 1e-6f * fabsf(log_z);
    if (!(log_limit >= -23)) return 0;  // u is at least 2^-32; nothing is kept by NaN either
    const auto limit = static_cast<uint32_t>(expf(fminf(log_limit, 0)) * 0x1p31f);
    unsigned candidates = 0, kept = 0;
    for (int j = 0; j < OwnLogits::kCount; ++j) {
      candidates |= (BitsOf(own, j, key_of_example) <= limit ? 1u : 0u) << j;
    }
    for (; candidates != 0; candidates &= candidates - 1) {
      const int j = __ffs(candidates) - 1;
      const KeptLogit entry = EntryOf(own, j, key_of_example);
      if (rule_.Keeps(entry.logit, entry.key, bound)) kept |= 1u << j;
    }
    return kept;
  }

  // Writes the kept own logits of a warp from `at` on, as far as there is room.
  __device__ void Write(const OwnLogits& own, uint32_t key_of_example, unsigned kept, int64_t at) {
    const unsigned lanes_before = (1u << threadIdx.x % kWarpSize) - 1;
    for (unsigned any = OfWarp(kept, Or()); any != 0; any &= any - 1) {
      const int j = __ffs(any) - 1;
      const bool keeps = (kept >> j & 1) != 0;
      const unsigned lanes = __ballot_sync(~0u, keeps);
      const int64_t own_at = at + __popc(lanes & lanes_before);
      if (keeps && own_at < room_) entries_[own_at] = EntryOf(own, j, key_of_example);
      at += __popc(lanes);
    }
  }

  // Leaves the entries that stay, in their order.
  template <typename Stays>
  __device__ void Thin(const Stays& stays) {
    int64_t left = 0;
    for (int64_t first = 0; first < size_; first += kThreads) {
      const int64_t at = first + threadIdx.x;
      KeptLogit entry = {};
      if (at < size_) entry = entries_[at];
      const bool does_stay = at < size_ && stays(entry);
      uint32_t total;
      const uint32_t before = SumBefore(does_stay ? 1 : 0, shared_, &total);  // all have read
      if (does_stay) entries_[left + before] = entry;
      left += total;
    }
    size_ = left;
    __syncthreads();
  }

  const StreamedLogitsInputs& in_;
  const Rule& rule_;
  const int64_t room_;
  uint32_t* const shared_;
  const int64_t i_;
  int64_t size_, needed_;
  KeptLogit* const entries_;
};

// The state before any class. A thread for each example and each label.
__global__ void __launch_bounds__(kThreads)
    BeginExamples(int64_t batch, int64_t num_targets, Found found, float* target_logits) {
  const int64_t at = OwnIndex();
  if (at < num_targets) target_logits[at] = 0;
  if (at >= batch) return;
  found.terms[at] = {};
  found.sizes[at] = found.needed[at] = 0;
}

// A block of threads for each example, for the rows [begin, begin + columns).
__global__ void __launch_bounds__(kThreads)
    LookAtBlock(SoftmaxSelectionInputs in, Rule rule, Found found, int64_t room, bool is_first,
                int64_t begin, int64_t columns, const float* logits, SoftmaxSelectionOutputs out) {
  TFX_SHARED_MEMORY(memory);
  const StreamedLogitsInputs& layer = in.layer;
  const int64_t i = blockIdx.x, end = begin + columns;
  const float* of_example = logits + i * columns;
  const uint32_t key =
      KeyOfExample(static_cast<uint64_t>(in.seed[0]), static_cast<uint64_t>(in.seed[1]), i);
  Entries entries(in, rule, found, room, memory);
  SoftmaxTerms terms = found.terms[i];
  for (int64_t first = begin; first < end; first += kChunk) {
    const OwnLogits own(layer.weights, of_example + first - begin, first,
                        first + kChunk < end ? first + kChunk : end);
    if (is_first) terms = terms + TermsOfBlock(own, reinterpret_cast<SoftmaxTerms*>(memory));
    if (room > 0) entries.Keep(own, key, is_first ? BoundOf(terms) : out.logsumexp[i]);
  }
  if (room > 0) entries.Save(found);
  if (!is_first) return;
  if (threadIdx.x == 0) found.terms[i] = terms;
  for (int64_t at = i * layer.num_labels + threadIdx.x; at < (i + 1) * layer.num_labels;
       at += kThreads) {
    const int64_t label = layer.labels[at];
    const int64_t row = label < 0 ? -1 : layer.shard.RowOf(label);
    if (row < begin || row >= end) continue;
    out.target_logits[at] = of_example[row - begin] + BiasOf(layer.weights, row);
  }
}

// A block of threads for each example.
__global__ void __launch_bounds__(kThreads)
    FinishExample(SoftmaxSelectionInputs in, Rule rule, Found found, int64_t room, bool is_first,
                  float* logsumexp) {
  TFX_SHARED_MEMORY(memory);
  const int64_t i = blockIdx.x;
  const float log_z =
      is_first ? LogOfSum(found.terms[i].sum, found.terms[i].maximum) : logsumexp[i];
  if (is_first && threadIdx.x == 0) logsumexp[i] = log_z;
  if (room == 0) return;
  Entries entries(in, rule, found, room, memory);
  entries.Finish(log_z);
  entries.Save(found);
}

__global__ void __launch_bounds__(kThreads)
    FindSizes(int64_t batch, Found found, SoftmaxSelectionSizes* sizes) {
  TFX_SHARED_MEMORY(memory);
  const auto larger = [](int64_t a, int64_t b) { return a > b ? a : b; };
  int64_t most_kept = 0, needed = 0;
  for (int64_t i = threadIdx.x; i < batch; i += kThreads) {
    most_kept = larger(most_kept, found.sizes[i]);
    needed = larger(needed, found.needed[i]);
  }
  most_kept = OfBlock(most_kept, larger, memory);
  needed = OfBlock(needed, larger, memory);
  if (threadIdx.x == 0) *sizes = {most_kept, needed};
}

// A block of threads for each example.
__global__ void __launch_bounds__(kThreads)
    WriteExample(ClassShard shard, Rule rule, Found found, int64_t room, const float* logsumexp,
                 SoftmaxSelectionEntries to) {
  const int64_t i = blockIdx.x, size = found.sizes[i];
  const KeptLogit* entries = found.entries + i * room;
  for (int64_t j = threadIdx.x; j < to.size; j += kThreads) {
    const bool is_there = j < size;
    const KeptLogit entry = is_there ? entries[j] : KeptLogit{};
    const int64_t at = i * to.size + j;
    to.ids[at] = is_there ? shard.ClassOf(entry.row) : -1;
    to.weights[at] = is_there ? fmaxf(expf(entry.logit - logsumexp[i]), rule.epsilon) : 0;
    to.logits[at] = entry.logit;
    to.keys[at] = entry.key;
  }
}

}  // namespace

int64_t RoomForEntries(const SoftmaxSelectionInputs& inputs) {
  if (inputs.layer.keep == nullptr) return 0;
  // With the Z of any rows at hand, num_expected of these rows are expected to be kept at most. So
  // there is room for what is left of earlier blocks, for what comes from one, and for deviations.
  return std::min(4 * inputs.layer.keep->num_expected + 1024,
                  std::max<int64_t>(1, inputs.layer.weights.num_classes));
}

int64_t SoftmaxSelectionScratchBytes(const SoftmaxSelectionInputs& inputs, int64_t room) {
  Scratch scratch(nullptr);
  Memory memory(inputs, room, &scratch);
  return scratch.bytes();
}

Error SoftmaxSelection(CUstream_st* stream, const SoftmaxSelectionInputs& inputs, int64_t room,
                       bool is_first, void* scratch, const SoftmaxSelectionOutputs& outputs) {
  ForgetErrors();
  const StreamedLogitsInputs& layer = inputs.layer;
  Scratch pieces(scratch);
  Memory memory(inputs, room, &pieces);
  const Rule rule(layer.keep);
  Error error;
  if (layer.batch > 0) {
    const int64_t num_targets = is_first ? layer.batch * layer.num_labels : 0;
    TFX_LAUNCH_THREADS(BeginExamples, std::max(layer.batch, num_targets), stream, layer.batch,
                       num_targets, memory.found, outputs.target_logits);
    error = memory.blocks.Begin(stream);
    for (int64_t begin = 0; error.ok() && begin < layer.weights.num_classes; begin += memory.size) {
      const int64_t columns = std::min(memory.size, layer.weights.num_classes - begin);
      error = memory.blocks.Logits(stream, begin, columns, memory.logits);
      if (!error.ok()) break;
      TFX_LAUNCH(LookAtBlock, Grid(layer.batch), dim3(kThreads), kSharedBytes, stream, inputs, rule,
                 memory.found, room, is_first, begin, columns, memory.logits, outputs);
    }
    TFX_LAUNCH(FinishExample, Grid(layer.batch), dim3(kThreads), kSharedBytes, stream, inputs, rule,
               memory.found, room, is_first, outputs.logsumexp);
  }
  if (room > 0) {
    TFX_LAUNCH(FindSizes, Grid(1), dim3(kThreads), kSharedBytes, stream, layer.batch, memory.found,
               outputs.sizes);
  }
  return error.ok() ? LastError() : error;
}

Error WriteEntries(CUstream_st* stream, const SoftmaxSelectionInputs& inputs, int64_t room,
                   void* scratch, const float* logsumexp, const SoftmaxSelectionEntries& entries) {
  if (inputs.layer.batch == 0 || entries.size == 0) return {};
  ForgetErrors();
  Scratch pieces(scratch);
  const Memory memory(inputs, room, &pieces);
  TFX_LAUNCH_BLOCKS(WriteExample, inputs.layer.batch, stream, inputs.layer.shard,
                    Rule(inputs.layer.keep), memory.found, room, logsumexp, entries);
  return LastError();
}

}  // namespace tfx::core::gpu
