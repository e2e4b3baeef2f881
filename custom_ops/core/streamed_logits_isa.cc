// SPDX-License-Identifier: Apache-2.0
//
// Compiled once an instruction set: see cmake/instruction_sets.cmake for what may be included.

#include "core/streamed_logits_isa.h"

#include <float.h>
#include <math.h>

#include "core/logit_slabs.h"
#include "core/simd.h"
#include "core/vector_exp.h"

namespace tfx::core::TFX_ISA {
namespace {

constexpr int kNarrowExamples = kLanes > 4 ? 4 : 1;

// As Wide, for so few examples that lanes along the width waste less than lanes of examples. The
// lanes beyond the examples are 0.
struct Narrow {
  typedef float Element;
  static constexpr int kVectors = 1;

  static void Compute(const float* rows, const float* bias, int num_rows, int64_t width,
                      const Panel& panel, Slab* slabs) {
    const int64_t whole = width - width % kLanes;
    for (int i = 0; i < num_rows; ++i) {
      const float* row = rows + i * width;
      Prefetch(row, kTileRows<kPanelVectors> * width, width);
      Floats o = {};
      for (int example = 0; example < panel.examples; ++example) {
        const float* h = panel.hidden_rows + example * width;
        Floats part = {};
        for (int64_t d = 0; d < whole; d += kLanes) part = MulAdd(Load(row + d), Load(h + d), part);
        float sum = bias[i] + Sum(part);
        for (int64_t d = whole; d < width; ++d) sum += row[d] * h[d];
        o[example] = sum;
      }
      slabs[0][i] = o;
    }
  }
};

bool IsNarrow(const StreamedLogitsPass& pass, const Panel& panel) {
  return panel.examples <= kNarrowExamples && !pass.layer.rounds;
}

// The largest logit of each lane; NaN doesn't count.
Floats MaxOf(const Slab& o, int num_rows) {
  Floats max[4];
  for (int j = 0; j < 4; ++j) max[j] = Broadcast(-INFINITY);
  int i = 0;
  for (; i + 4 <= num_rows; i += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) max[j] = Max(o[i + j], max[j]);
  }
  for (; i < num_rows; ++i) max[0] = Max(o[i], max[0]);
  return Max(Max(max[0], max[1]), Max(max[2], max[3]));
}

// The running sum of exponentials of one vector of examples, with Kahan's compensation.
struct RunningSum {
  Floats max;  // of the logits so far, at least -FLT_MAX; NaN doesn't count
  Floats sum;  // of exp(o - Reference(max))
  Floats lost;
};

TFX_INLINE Floats Reference(Floats max) { return Min(max, Broadcast(FLT_MAX)); }

void RaiseMax(Floats max_of_slab, RunningSum* running) {
  if (Greater(max_of_slab, running->max) == 0) return;
  const Floats max = Max(max_of_slab, running->max);
  const Floats scale = ExpOfNonPositive(Reference(running->max) - Reference(max));
  running->max = max;
  running->sum *= scale;
  running->lost *= scale;
}

// Calls visit(i, exp(o_i - Reference(max))) for each row.
// REQUIRES: no logit is above the running maximum.
template <typename Visit>
TFX_INLINE void AddExponentials(const Slab& o, int num_rows, RunningSum* running,
                                const Visit& visit) {
  const Floats reference = Reference(running->max);
  Floats sum_of_slab = {};
#pragma GCC unroll 4
  for (int i = 0; i < num_rows; ++i) {
    // Above 0 only where the logit is +infinity; NaN stays.
    const Floats exponential = ExpOfNonPositive(Min(Floats{}, o[i] - reference));
    sum_of_slab += exponential;
    visit(i, exponential);
  }
  const Floats term = sum_of_slab - running->lost;
  const Floats sum = running->sum + term;
  running->lost = (sum - running->sum) - term;
  running->sum = sum;
}

// Adds to the counts of the panel's vector v.
void CountAboveTargets(const Slab& o, int num_rows, Floats max_of_slab, int64_t first_class,
                       const Panel& panel, int v, int32_t* counts) {
  for (int64_t slot = 0; slot < panel.num_slots; ++slot) {
    const int64_t at = slot * panel.lanes + v * kLanes;
    const Floats target = Load(panel.target_keys + at);
    if (GreaterEqual(max_of_slab, target) == 0) continue;
    const Ints ids_after = Load(panel.target_ids + at) - static_cast<int32_t>(first_class);
    const Ints ids_inside = (ids_after > 0) & (ids_after < num_rows);
    Ints count = {};
    if (AnyTrue(ids_inside | (target == -INFINITY))) {
      for (int i = 0; i < num_rows; ++i) {
        const Floats key = Max(o[i], Broadcast(-INFINITY));
        count -= (key > target) | ((key == target) & (ids_after > i));
      }
    } else {  // the common case: all of the slab is before a lane's label, or all after it
      const Ints ties_count = ids_after > 0;
#pragma GCC unroll 4
      for (int i = 0; i < num_rows; ++i) {
        count -= (o[i] > target) | ((o[i] == target) & ties_count);
      }
    }
    Store(counts + at, Load(counts + at) + count);
  }
}

// The lanes of vector v that have an example, as a bit mask.
TFX_INLINE uint32_t UsedLanes(const Panel& panel, int v) {
  const int used = panel.examples - v * kLanes;
  return used >= kLanes ? (1u << kLanes) - 1 : used <= 0 ? 0u : (1u << used) - 1;
}

// Offers the logits of the panel's vector v to the heaps.
void OfferBest(const Slab& o, int num_rows, Floats max_of_slab, int64_t first_class,
               const Panel& panel, int v, int64_t k, StreamedLogitsWorker* worker) {
  const int64_t first_lane = panel.first_lane + v * kLanes;
  const int64_t seen = first_class - worker->skipped;
  uint32_t lanes = UsedLanes(panel, v);
  // Once a heap is full, only a higher score gets in: an equal one has a higher id.
  if (seen >= k) lanes &= Greater(max_of_slab, Load(worker->thresholds + first_lane));
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    ScoredClass* heap = worker->heaps + (first_lane + lane) * k;
    float threshold = worker->thresholds[first_lane + lane];
    for (int i = 0; i < num_rows; ++i) {
      const float score = o[i][lane];
      if (seen + i >= k && !(score > threshold)) continue;
      const ScoredClass candidate = {score, static_cast<int32_t>(first_class + i)};
      OfferToHeap(candidate, heap, seen + i < k ? seen + i : k, k);
      threshold = OrderKey(heap[0].score);
    }
    worker->thresholds[first_lane + lane] = threshold;
  }
}

// Whether a filter lets a row be among the best of an example. REQUIRES: its group is at least 0.
bool MayBeFound(const RowFilter& filter, int64_t example, int32_t row) {
  if (filter.groups != nullptr) {
    const int32_t wanted = filter.wanted[example];
    if (wanted >= 0 && filter.groups[row] != wanted) return false;
  }
  const int32_t* first = filter.excluded + example * filter.num_excluded;
  int64_t size = filter.num_excluded;
  while (size > 0) {  // the first that is not below the row
    const int64_t half = size / 2;
    const bool is_below = first[half] < row;
    first = is_below ? first + half + 1 : first;
    size = is_below ? size - half - 1 : half;
  }
  return first == filter.excluded + (example + 1) * filter.num_excluded || *first != row;
}

// Does the same as OfferBest for classes that a filter allows.
void OfferFiltered(const Slab& o, int num_rows, Floats max_of_slab, int64_t first_class,
                   const Panel& panel, int v, const StreamedLogitsPass& pass,
                   StreamedLogitsWorker* worker) {
  const int64_t first_lane = panel.first_lane + v * kLanes, k = pass.k;
  float* thresholds = worker->thresholds + first_lane;
  uint32_t& unfilled = worker->unfilled[first_lane / kLanes];  // lanes whose heap has room
  uint32_t lanes = UsedLanes(panel, v);
  lanes &= Greater(max_of_slab, Load(thresholds)) | unfilled;
  if (lanes == 0) return;
  const int32_t* groups = pass.filter->groups;
  for (int i = 0; i < num_rows; ++i) {
    const auto row = static_cast<int32_t>(first_class + i);
    if (groups != nullptr && groups[row] < 0) continue;
    uint32_t hits = (Greater(o[i], Load(thresholds)) | unfilled) & lanes;
    for (; hits != 0; hits &= hits - 1) {
      const int lane = __builtin_ctz(hits);
      const int64_t example = first_lane + lane;
      if (!MayBeFound(*pass.filter, example, row)) continue;
      ScoredClass* heap = worker->heaps + example * k;
      int64_t& size = worker->sizes[example];
      OfferToHeap({o[i][lane], row}, heap, size, k);
      if (size < k) ++size;
      if (size < k) continue;
      unfilled &= ~(1u << lane);
      thresholds[lane] = OrderKey(heap[0].score);
    }
  }
}

// Each bit of the result depends on all of x.
TFX_INLINE uint32_t Scrambled(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Random numbers in (0, 1], one an example.
TFX_INLINE Floats RandomOf(Words keys, uint32_t class_key) {
  Words x = (keys ^ class_key) * 0x9e3779b1u;
  x = (x ^ (x >> 15)) * 0x85ebca77u;
  const Floats of_31_bits = __builtin_convertvector(reinterpret_cast<Ints>(x >> 1), Floats);
  return (of_31_bits + 0.5f) * 0x1p-31f;
}

// The factor of u: an entry is kept if exp(o - Reference(max)) is above it. That is epsilon of the
// larger of two lower bounds of Z, less what rounding may do to the comparison in the end.
TFX_INLINE Floats KeepThreshold(Floats bound, const RunningSum& running, float epsilon) {
  const Floats reference = Reference(running.max);
  const Floats above = bound - reference;
  const Floats of_bound =
      ExpOfNonPositive(Min(Floats{}, above)) / ExpOfNonPositive(Min(Floats{}, Floats{} - above));
  const Floats size = Max(reference, Floats{} - reference);
  const Floats slack = ExpOfNonPositive(Floats{} - (1e-4f + 1e-6f * size));
  return Max(of_bound, running.sum) * slack * epsilon;
}

// Adds the exponentials of the panel's vector v, and keeps some of the logits.
void AddAndKeep(const Slab& o, int num_rows, int64_t first_row, const Panel& panel, int v,
                const StreamedLogitsPass& pass, const uint32_t* class_keys,
                StreamedLogitsWorker* worker, RunningSum* running) {
  const int64_t first_lane = panel.first_lane + v * kLanes;
  const Floats threshold = KeepThreshold(Load(worker->bounds + first_lane), *running, pass.epsilon);
  const Words keys =
      reinterpret_cast<Words>(Load(reinterpret_cast<const int32_t*>(panel.keys) + v * kLanes));
  const uint32_t used = UsedLanes(panel, v);
  uint32_t masks[kSlabRows];
  AddExponentials(o, num_rows, running, [&](int i, Floats exponential) {
    const Floats u = RandomOf(keys, class_keys[i]);
    masks[i] = Greater(exponential, u * threshold) & used;
  });
  KeptLogits* kept = worker->kept;
  if (kept->capacity - kept->size < num_rows * kLanes) kept->make_room(kept, num_rows * kLanes);
  for (int i = 0; i < num_rows; ++i) {
    if (masks[i] == 0) continue;
    const Floats u = RandomOf(keys, class_keys[i]);
    for (uint32_t lanes = masks[i]; lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      const float logit = o[i][lane];
      kept->entries[kept->size++] = {static_cast<int32_t>(first_lane + lane),
                                     static_cast<int32_t>(first_row + i), logit,
                                     logit - logf(u[lane])};
    }
  }
}

// Classes [first_class, first_class + num_rows), for one panel.
template <typename Kind>
void VisitBlock(const StreamedLogitsPass& pass, const Panel& panel, const void* rows,
                const float* biases, int64_t first_class, int64_t num_rows,
                StreamedLogitsWorker* worker, ChunkSums sums) {
  constexpr int kVectors = Kind::kVectors;
  const auto* elements = static_cast<const typename Kind::Element*>(rows);
  const int64_t depth = DepthOf<typename Kind::Element>(pass.layer.width);
  RunningSum running[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int64_t lane = panel.first_lane + v * kLanes;
    running[v] = {Load(sums.max + lane), Load(sums.sum + lane), Load(worker->lost + lane)};
  }
  int32_t* counts = worker->counts + panel.first_lane * pass.num_labels;
  for (int64_t row = 0; row < num_rows; row += kSlabRows) {
    const int size = num_rows - row < kSlabRows ? num_rows - row : kSlabRows;
    Slab slabs[kVectors];
    Kind::Compute(elements + row * depth, biases + row, size, pass.layer.width, panel, slabs);
    for (int v = 0; v < kVectors; ++v) {
      const Slab& o = slabs[v];
      const Floats max = MaxOf(o, size);
      RaiseMax(max, &running[v]);
      if (pass.keeps) {
        AddAndKeep(o, size, first_class + row, panel, v, pass, worker->class_keys + row, worker,
                   &running[v]);
      } else {
        AddExponentials(o, size, &running[v], [](int, Floats) {});
      }
      CountAboveTargets(o, size, max, first_class + row, panel, v, counts);
      if (pass.k == 0) continue;
      if (pass.filter != nullptr) {
        OfferFiltered(o, size, max, first_class + row, panel, v, pass, worker);
      } else {
        OfferBest(o, size, max, first_class + row, panel, v, pass.k, worker);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const int64_t lane = panel.first_lane + v * kLanes;
    Store(sums.max + lane, running[v].max);
    Store(sums.sum + lane, running[v].sum);
    Store(worker->lost + lane, running[v].lost);
  }
}

template <typename Element>
void ComputeOneLogit(const void* row, const float* bias, int64_t width, const Panel& panel,
                     int32_t vector_start, Slab* slabs) {
  ComputeLogits<1, 1>(static_cast<const Element*>(row), bias, DepthOf<Element>(width),
                      static_cast<const Element*>(panel.hidden) + vector_start, panel.lanes, slabs,
                      0);
}

float TargetLogit(const StreamedLogitsPass& pass, const Panel& panel, int32_t lane, int64_t id,
                  float* scratch) {
  float bias_scratch;
  const void* row = Rows(pass.layer, id, 1, scratch);
  const float* bias = Biases(pass.layer, id, 1, &bias_scratch);
  Slab slabs[1];
  const int32_t vector_start = lane - lane % kLanes;
  if (IsNarrow(pass, panel)) {
    Narrow::Compute(static_cast<const float*>(row), bias, 1, pass.layer.width, panel, slabs);
  } else if (pass.layer.rounds) {
    ComputeOneLogit<Rounded>(row, bias, pass.layer.width, panel, vector_start, slabs);
  } else {
    ComputeOneLogit<float>(row, bias, pass.layer.width, panel, vector_start, slabs);
  }
  return slabs[0][0][lane - vector_start];
}

template <typename Element>
auto VisitWide(const Panel& panel) {
  return panel.lanes == kLanes ? VisitBlock<Wide<Element, 1>>
                               : VisitBlock<Wide<Element, kPanelVectors>>;
}

void Chunk(const StreamedLogitsPass& pass, int64_t begin, int64_t end, StreamedLogitsWorker* worker,
           ChunkSums sums) {
  const int64_t lanes = pass.num_panels * kPanelVectors * kLanes;
  for (int64_t lane = 0; lane < lanes; lane += kLanes) {
    Store(sums.max + lane, Broadcast(-FLT_MAX));
    Store(sums.sum + lane, Floats{});
    Store(worker->lost + lane, Floats{});
  }
  worker->skipped = begin - worker->classes_seen;
  const int64_t block = RowsOfBlock(pass.layer.width);
  for (int64_t first = begin; first < end; first += block) {
    const int64_t size = Min(block, end - first);
    const void* rows = Rows(pass.layer, first, size, worker->rows);
    const float* biases = Biases(pass.layer, first, size, worker->biases);
    for (int64_t i = 0; pass.keeps && i < size; ++i) {
      worker->class_keys[i] =
          Scrambled(static_cast<uint32_t>(pass.first_class + pass.class_stride * (first + i)));
    }
    for (int64_t p = 0; p < pass.num_panels; ++p) {
      const Panel& panel = pass.panels[p];
      const auto visit = IsNarrow(pass, panel) ? VisitBlock<Narrow>
                         : pass.layer.rounds   ? VisitWide<Rounded>(panel)
                                               : VisitWide<float>(panel);
      visit(pass, panel, rows, biases, first, size, worker, sums);
    }
  }
  worker->classes_seen += end - begin;
}

}  // namespace

const StreamedLogitsIsa kStreamedLogits = {
    kLanes, kPanelVectors * kLanes, RowsOfBlock, PackPanel, TargetLogit, Chunk};

}  // namespace tfx::core::TFX_ISA
