// SPDX-License-Identifier: Apache-2.0
//
// Compiled once an instruction set: see cmake/instruction_sets.cmake for what may be included.

#include "core/streamed_logits_isa.h"

#include <float.h>
#include <math.h>

#include "core/simd.h"
#include "core/vector_exp.h"

namespace tfx::core::TFX_ISA {
namespace {

// A tile is some classes x one or two vectors of examples, so many that its sums stay in registers:
// there are 32 with AVX-512, else 16.
constexpr int kPanelVectors = 2;
template <int kVectors>
constexpr int kTileRows = kLanes == 16 && kVectors == 2 ? 12 : kVectors == 1 ? 10 : 6;
constexpr int64_t kStretch = 64;           // of the width that is summed in one chain
constexpr int64_t kBlockBytes = 64 << 10;  // of W: stays in the second-level cache

int64_t RowsOfBlock(int64_t width) {
  constexpr int64_t kRows = 120;  // a multiple of every tile
  const int64_t tiles = kBlockBytes / (4 * kRows * (width > 0 ? width : 1));
  return kRows * (tiles < 1 ? 1 : tiles > 64 ? 64 : tiles);
}

// o[i][v] = <W_i, h_v> + b_i. The width is summed in stretches, each in order, so that rounding
// errors don't pile up in one long chain.
template <int kRows, int kVectors>
TFX_INLINE void ComputeTile(const float* rows, const float* bias, int64_t width,
                            const float* hidden, int64_t hidden_stride,
                            Floats (&o)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) o[i][v] = Broadcast(bias[i]);
  }
  for (int64_t begin = 0; begin < width; begin += kStretch) {
    const int64_t end = begin + kStretch < width ? begin + kStretch : width;
    Floats part[kRows][kVectors] = {};
    for (int64_t d = begin; d < end; ++d) {
      Floats h[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) h[v] = Load(hidden + d * hidden_stride + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const Floats w = Broadcast(rows[i * width + d]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) part[i][v] = MulAdd(w, h[v], part[i][v]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) o[i][v] += part[i][v];
    }
  }
}

// Asks for floats that are needed soon. The address need not be valid.
TFX_INLINE void Prefetch(const float* from, int64_t size) {
  constexpr int64_t kFloatsOfLine = 16;
  for (int64_t i = 0; i < size; i += kFloatsOfLine) __builtin_prefetch(from + i);
}

// The running sum of exponentials of one vector of examples, with Kahan's compensation.
struct RunningSum {
  Floats max;  // of the logits so far, at least -FLT_MAX; NaN doesn't count
  Floats sum;  // of exp(o - Reference(max))
  Floats lost;
};

TFX_INLINE Floats Reference(Floats max) { return Min(max, Broadcast(FLT_MAX)); }

template <int kRows, int kVectors>
TFX_INLINE void AddExponentials(const Floats (&o)[kRows][kVectors], int v, Floats tile_max,
                                RunningSum* running) {
  if (Greater(tile_max, running->max) != 0) {
    const Floats max = Max(tile_max, running->max);
    const Floats scale = ExpOfNonPositive(Reference(running->max) - Reference(max));
    running->max = max;
    running->sum *= scale;
    running->lost *= scale;
  }
  const Floats reference = Reference(running->max);
  Floats tile_sum = {};
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    // Above 0 only where the logit is +infinity; NaN stays.
    tile_sum += ExpOfNonPositive(Min(Floats{}, o[i][v] - reference));
  }
  const Floats term = tile_sum - running->lost;
  const Floats sum = running->sum + term;
  running->lost = (sum - running->sum) - term;
  running->sum = sum;
}

template <int kRows, int kVectors>
TFX_INLINE void CountAboveTargets(const Floats (&o)[kRows][kVectors], int v, Floats tile_max,
                                  int64_t first_class, const Panel& panel, int32_t* counts) {
  for (int64_t slot = 0; slot < panel.num_slots; ++slot) {
    const int64_t at = slot * panel.lanes + v * kLanes;
    const Floats target = Load(panel.target_keys + at);
    if (GreaterEqual(tile_max, target) == 0) continue;
    const Ints ids_after = Load(panel.target_ids + at) - static_cast<int32_t>(first_class);
    Ints count = Load(counts + at);
    const Ints ids_inside = (ids_after > 0) & (ids_after < kRows);
    if (AnyTrue(ids_inside | (target == -INFINITY))) {
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const Floats key = Max(o[i][v], Broadcast(-INFINITY));
        count -= (key > target) | ((key == target) & (ids_after > i));
      }
    } else {  // the common case: all of the tile is before a lane's label, or all is behind it
      const Ints ties_count = ids_after > 0;
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        count -= (o[i][v] > target) | ((o[i][v] == target) & ties_count);
      }
    }
    Store(counts + at, count);
  }
}

// Offers a tile's logits for the vector that starts at `first_lane` to the heaps of `lanes`, a bit
// mask.
template <int kRows>
__attribute__((noinline)) void OfferTile(const Floats (&o)[kRows], uint32_t lanes,
                                         int64_t first_class, int64_t first_lane, int64_t k,
                                         StreamedLogitsWorker* worker) {
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    ScoredClass* heap = worker->heaps + (first_lane + lane) * k;
    float& threshold = worker->thresholds[first_lane + lane];
    for (int i = 0; i < kRows; ++i) {
      const int64_t seen = first_class + i - worker->skipped;
      if (seen >= k && !(o[i][lane] > threshold)) continue;
      const ScoredClass candidate = {o[i][lane], static_cast<int32_t>(first_class + i)};
      OfferToHeap(candidate, heap, seen < k ? seen : k, k);
      threshold = OrderKey(heap[0].score);
    }
  }
}

// The lanes of vector v that have an example, as a bit mask.
TFX_INLINE uint32_t UsedLanes(const Panel& panel, int v) {
  const int used = panel.examples - v * kLanes;
  return used >= kLanes ? (1u << kLanes) - 1 : used <= 0 ? 0u : (1u << used) - 1;
}

template <int kRows, int kVectors>
TFX_INLINE void OfferBest(const Floats (&o)[kRows][kVectors], int v, Floats tile_max,
                          int64_t first_class, const Panel& panel, int64_t k,
                          StreamedLogitsWorker* worker) {
  const int64_t first_lane = panel.first_lane + v * kLanes;
  uint32_t lanes = UsedLanes(panel, v);
  // Once a heap is full, only a higher score gets in: an equal one has a higher id.
  if (first_class - worker->skipped >= k) {
    lanes &= Greater(tile_max, Load(worker->thresholds + first_lane));
  }
  if (lanes == 0) return;
  Floats column[kRows];  // a copy, so that `o` itself can stay in registers
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) column[i] = o[i][v];
  OfferTile(column, lanes, first_class, first_lane, k, worker);
}

// Classes [first_class, first_class + num_rows), for one panel.
// REQUIRES: num_rows is a multiple of kRows.
template <int kRows, int kVectors>
void VisitRows(const StreamedLogitsPass& pass, const Panel& panel, const float* rows,
               const float* biases, int64_t first_class, int64_t num_rows,
               StreamedLogitsWorker* worker, RunningSum (&running)[kVectors]) {
  int32_t* counts = worker->counts + panel.first_lane * pass.num_labels;
  for (int64_t row = 0; row < num_rows; row += kRows) {
    Floats o[kRows][kVectors];
    Prefetch(rows + (row + kRows) * pass.width, kRows * pass.width);
    ComputeTile<kRows, kVectors>(rows + row * pass.width, biases + row, pass.width, panel.hidden,
                                 panel.lanes, o);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Floats tile_max = Broadcast(-INFINITY);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) tile_max = Max(o[i][v], tile_max);
      AddExponentials(o, v, tile_max, &running[v]);
      CountAboveTargets(o, v, tile_max, first_class + row, panel, counts);
      if (pass.k > 0) OfferBest(o, v, tile_max, first_class + row, panel, pass.k, worker);
    }
  }
}

template <int kVectors>
void VisitBlock(const StreamedLogitsPass& pass, const Panel& panel, const float* rows,
                const float* biases, int64_t first_class, int64_t num_rows,
                StreamedLogitsWorker* worker, ChunkSums sums) {
  RunningSum running[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int64_t lane = panel.first_lane + v * kLanes;
    running[v] = {Load(sums.max + lane), Load(sums.sum + lane), Load(worker->lost + lane)};
  }
  constexpr int kRows = kTileRows<kVectors>;
  const int64_t whole = num_rows - num_rows % kRows;
  VisitRows<kRows, kVectors>(pass, panel, rows, biases, first_class, whole, worker, running);
  VisitRows<1, kVectors>(pass, panel, rows + whole * pass.width, biases + whole,
                         first_class + whole, num_rows - whole, worker, running);
  for (int v = 0; v < kVectors; ++v) {
    const int64_t lane = panel.first_lane + v * kLanes;
    Store(sums.max + lane, running[v].max);
    Store(sums.sum + lane, running[v].sum);
    Store(worker->lost + lane, running[v].lost);
  }
}

void ToFloats(const uint16_t* from, int64_t size, float* to) {
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    memcpy(to + i, &bits, sizeof(bits));
  }
}

// Entries [begin, begin + size) of a float or bfloat16 array, as floats.
const float* AsFloats(const void* array, bool is_bfloat16, int64_t begin, int64_t size,
                      float* scratch) {
  if (!is_bfloat16) return static_cast<const float*>(array) + begin;
  ToFloats(static_cast<const uint16_t*>(array) + begin, size, scratch);
  return scratch;
}

const float* Biases(const StreamedLogitsPass& pass, int64_t begin, int64_t size, float* scratch) {
  if (pass.bias != nullptr) return AsFloats(pass.bias, pass.is_bfloat16, begin, size, scratch);
  memset(scratch, 0, size * sizeof(float));
  return scratch;
}

float TargetLogit(const StreamedLogitsPass& pass, const Panel& panel, int32_t lane, int64_t id,
                  float* scratch) {
  float bias_scratch;
  const float* row = AsFloats(pass.kernel, pass.is_bfloat16, id * pass.width, pass.width, scratch);
  const float* bias = Biases(pass, id, 1, &bias_scratch);
  Floats o[1][1];
  const int32_t vector_start = lane - lane % kLanes;
  ComputeTile<1, 1>(row, bias, pass.width, panel.hidden + vector_start, panel.lanes, o);
  return o[0][0][lane % kLanes];
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
  const int64_t block = RowsOfBlock(pass.width);
  for (int64_t first = begin; first < end; first += block) {
    const int64_t size = end - first < block ? end - first : block;
    const float* rows = AsFloats(pass.kernel, pass.is_bfloat16, first * pass.width,
                                 size * pass.width, worker->rows);
    const float* biases = Biases(pass, first, size, worker->biases);
    for (int64_t p = 0; p < pass.num_panels; ++p) {
      const Panel& panel = pass.panels[p];
      auto visit = panel.lanes == kLanes ? VisitBlock<1> : VisitBlock<kPanelVectors>;
      visit(pass, panel, rows, biases, first, size, worker, sums);
    }
  }
  worker->classes_seen += end - begin;
}

}  // namespace

extern const StreamedLogitsIsa kStreamedLogits;
const StreamedLogitsIsa kStreamedLogits = {kLanes, kPanelVectors * kLanes, RowsOfBlock, TargetLogit,
                                           Chunk};

}  // namespace tfx::core::TFX_ISA
