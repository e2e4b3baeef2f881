// SPDX-License-Identifier: Apache-2.0

#include "core/gpu/softmax_selection.h"

#include <algorithm>
#include <cmath>

#include "core/gpu/bfloat16.h"
#include "core/gpu/block_reduction.h"
#include "core/gpu/launch_each.h"
#include "core/gpu/streamed_softmax.h"
#include "core/keep_random.h"
#include "core/kept_logits.h"

namespace tfx::core::gpu {
namespace {

// The smallest number of examples for which a block of classes is sized: each example has a
// separate block of threads, which reads all of the classes.
constexpr int64_t kFewestExamples = 256;
constexpr size_t kSharedBytes = 8 * kWarps;

// The results so far, by example.
struct Found {
  double* sums;        // of exp(o - maximum)
  float* maxima;       // of all logits that are numbers
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
    found.sums = scratch->Take<double>(batch);
    found.maxima = scratch->Take<float>(batch);
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

// A random number in (0, 1] for an example and a class.
__device__ float RandomOf(uint32_t key_of_example, int64_t id) {
  auto of_class = static_cast<uint32_t>(id);
  of_class = (of_class ^ (of_class >> 16)) * 0x7feb352du;
  of_class = (of_class ^ (of_class >> 15)) * 0x846ca68bu;
  of_class ^= of_class >> 16;
  uint32_t x = (key_of_example ^ of_class) * 0x9e3779b1u;
  x = (x ^ (x >> 15)) * 0x85ebca77u;
  return (static_cast<float>(static_cast<int32_t>(x >> 1)) + 0.5f) * 0x1p-31f;
}

// The work of a block of threads on its example.
class Example {
 public:
  __device__ Example(const SoftmaxSelectionInputs& in, const Rule& rule, const Found& found,
                     int64_t room, unsigned char* shared)
      : in_(in.layer),
        rule_(rule),
        found_(found),
        room_(room),
        shared_(shared),
        i_(blockIdx.x),
        entries_(found.entries + i_ * room) {}

  // Adds the exponentials of logits [n]. Returns a lower bound of log Z to all threads.
  __device__ float AddToSoftmax(const float* logits, int64_t n) {
    float here = -INFINITY;
    for (int64_t c = threadIdx.x; c < n; c += kThreads) here = fmaxf(here, logits[c]);
    here = OfBlock(here, Max(), shared_);
    float terms = 0;
    for (int64_t c = threadIdx.x; c < n; c += kThreads) terms += ExpBelow(logits[c], here);
    const double total = OfBlock(static_cast<double>(terms), Sum(), shared_);
    const float before = found_.maxima[i_];
    const double sum_before = found_.sums[i_];
    const float maximum = fmaxf(here, before);
    const double sum = total * ExpBelow(here, maximum) + sum_before * ExpBelow(before, maximum);
    __syncthreads();  // all threads have read the old value
    if (threadIdx.x == 0) {
      found_.maxima[i_] = maximum;
      found_.sums[i_] = sum;
    }
    const float bound = LogOfSum(sum, maximum);
    // Minus the effect of rounding on comparisons.
    return isfinite(bound) ? bound - (1e-4f + 1e-6f * fabsf(bound)) : bound;
  }

  // Keeps entries of rows [begin, begin + n), by a bound of log Z.
  __device__ void Keep(const float* logits, int64_t begin, int64_t n, uint32_t key_of_example,
                       float bound) {
    int64_t size = found_.sizes[i_];
    if (size + n > room_) {
      size = Thin(size, [&](const KeptLogit& e) { return rule_.Keeps(e.logit, e.key, bound); });
    }
    int64_t wanted = size;
    for (int64_t first = 0; first < n; first += kThreads) {
      const int64_t c = first + threadIdx.x;
      KeptLogit entry = {static_cast<int32_t>(i_), static_cast<int32_t>(begin + c), 0, 0};
      bool keeps = false;
      if (c < n) {
        const float u = RandomOf(key_of_example, in_.shard.ClassOf(entry.row));
        entry.logit = logits[c];
        entry.key = entry.logit - logf(u);
        keeps = rule_.Keeps(entry.logit, entry.key, bound);
      }
      wanted += Append(keeps, entry, wanted);
    }
    if (threadIdx.x != 0) return;
    found_.sizes[i_] = wanted < room_ ? wanted : room_;
    if (found_.needed[i_] < wanted) found_.needed[i_] = wanted;
  }

  // Keeps the entries that log Z selects, without labels.
  __device__ void Finish(float log_z) {
    const int64_t* labels = in_.labels + i_ * in_.num_labels;
    const int64_t size = Thin(found_.sizes[i_], [&](const KeptLogit& e) {
      if (!rule_.Keeps(e.logit, e.key, log_z)) return false;
      const int64_t id = in_.shard.ClassOf(e.row);
      for (int64_t k = 0; k < in_.num_labels; ++k) {
        if (labels[k] == id) return false;
      }
      return true;
    });
    if (threadIdx.x == 0) found_.sizes[i_] = size;
  }

 private:
  // Leaves the first `size` entries that stay, in their order. Returns how many.
  template <typename Stays>
  __device__ int64_t Thin(int64_t size, const Stays& stays) {
    int64_t left = 0;
    for (int64_t first = 0; first < size; first += kThreads) {
      const int64_t at = first + threadIdx.x;
      KeptLogit entry = {};
      if (at < size) entry = entries_[at];
      left += Append(at < size && stays(entry), entry, left);  // waits until all have read
    }
    __syncthreads();
    return left;
  }

  // Writes an entry of each thread that keeps one from `at` on, in their order, as far as there is
  // room. Returns how many threads keep one.
  __device__ int64_t Append(bool keeps, const KeptLogit& entry, int64_t at) {
    uint32_t total;
    at += SumBefore(keeps ? 1 : 0, static_cast<uint32_t*>(static_cast<void*>(shared_)), &total);
    if (keeps && at < room_) entries_[at] = entry;
    return total;
  }

  const StreamedLogitsInputs& in_;
  const Rule& rule_;
  const Found& found_;
  const int64_t room_;
  unsigned char* const shared_;
  const int64_t i_;
  KeptLogit* const entries_;
};

// The state before any class. A thread for each example and each label.
__global__ void __launch_bounds__(kThreads)
    BeginExamples(int64_t batch, int64_t num_targets, Found found, float* target_logits) {
  const int64_t at = OwnIndex();
  if (at < num_targets) target_logits[at] = 0;
  if (at >= batch) return;
  found.sums[at] = 0;
  found.maxima[at] = -INFINITY;
  found.sizes[at] = found.needed[at] = 0;
}

// A block of threads for each example, for the rows [begin, begin + columns).
__global__ void __launch_bounds__(kThreads)
    LookAtBlock(SoftmaxSelectionInputs in, Rule rule, Found found, int64_t room, bool is_first,
                int64_t begin, int64_t columns, float* logits, SoftmaxSelectionOutputs out) {
  TFX_SHARED_MEMORY(memory);
  const StreamedLogitsInputs& layer = in.layer;
  const int64_t i = blockIdx.x;
  float* of_example = logits + i * columns;
  for (int64_t c = threadIdx.x; layer.weights.bias != nullptr && c < columns; c += kThreads) {
    of_example[c] += BiasOf(layer.weights, begin + c);
  }
  __syncthreads();
  Example example(in, rule, found, room, memory);
  float bound;
  if (is_first) {
    bound = example.AddToSoftmax(of_example, columns);
    for (int64_t at = i * layer.num_labels + threadIdx.x; at < (i + 1) * layer.num_labels;
         at += kThreads) {
      const int64_t label = layer.labels[at];
      const int64_t row = label < 0 ? -1 : layer.shard.RowOf(label);
      if (row >= begin && row < begin + columns) out.target_logits[at] = of_example[row - begin];
    }
  } else {
    bound = out.logsumexp[i];
  }
  if (room == 0) return;
  const uint32_t key =
      KeyOfExample(static_cast<uint64_t>(in.seed[0]), static_cast<uint64_t>(in.seed[1]), i);
  example.Keep(of_example, begin, columns, key, bound);
}

// A block of threads for each example.
__global__ void __launch_bounds__(kThreads)
    FinishExample(SoftmaxSelectionInputs in, Rule rule, Found found, int64_t room, bool is_first,
                  float* logsumexp) {
  TFX_SHARED_MEMORY(memory);
  const int64_t i = blockIdx.x;
  const float log_z = is_first ? LogOfSum(found.sums[i], found.maxima[i]) : logsumexp[i];
  if (is_first && threadIdx.x == 0) logsumexp[i] = log_z;
  if (room > 0) Example(in, rule, found, room, memory).Finish(log_z);
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
