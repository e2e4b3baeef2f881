// SPDX-License-Identifier: Apache-2.0
//
// Compiled once an instruction set: see cmake/instruction_sets.cmake for what may be included.

#include "core/row_kernels_isa.h"

#include "core/simd.h"

namespace tfx::core::TFX_ISA {
namespace {

constexpr int64_t kRowsAhead = 12;  // that are prefetched

// 32 random bits for each of up to kLanes columns of a row from `column` on, by two halves of a
// key. They are the same on every instruction set, and in random_bits of Python.
TFX_INLINE Words RandomWords(uint32_t low, uint32_t high, int64_t column) {
  constexpr uint32_t kStride = 0x9e3779b9u;
  Words x;
  for (int i = 0; i < kLanes; ++i) x[i] = i * kStride;  // a constant
  x += static_cast<uint32_t>(column) * kStride + low;
  x = (x ^ (x >> 16)) * 0x21f0aaadu ^ high;
  x = (x ^ (x >> 15)) * 0x735a2d97u;
  return x ^ (x >> 15);
}

// The ways in which a row of weights is kept.
struct FloatRow {
  float* weights;
};
struct BfloatRow {
  uint16_t* weights;
};
struct RandomRow {
  uint16_t* weights;
  uint32_t low, high;  // of the key
};
struct CompensatedRow {
  uint16_t* weights;
  uint16_t* errors;
};

// Up to kLanes weights from `begin` on.
template <typename Row>
TFX_INLINE Floats LoadWeights(const Row& row, int64_t begin, int64_t n) {
  return LoadSome(row.weights + begin, n);
}
TFX_INLINE Floats LoadWeights(const CompensatedRow& row, int64_t begin, int64_t n) {
  return LoadSome(row.weights + begin, n) + LoadSome(row.errors + begin, n);
}

template <typename Row>
TFX_INLINE void StoreWeights(const Row& row, int64_t begin, Floats x, int64_t n) {
  StoreSome(row.weights + begin, x, n);
}
TFX_INLINE void StoreWeights(const RandomRow& row, int64_t begin, Floats x, int64_t n) {
  const Words random = RandomWords(row.low, row.high, begin) & 0xffff;
  StoreSome(row.weights + begin, NarrowAtRandom(x, random), n);
}
TFX_INLINE void StoreWeights(const CompensatedRow& row, int64_t begin, Floats x, int64_t n) {
  const Halves halves = Narrow(x);
  const Floats rounded = Widen(halves);
  const Words is_finite = reinterpret_cast<Words>(rounded - rounded == 0.0f);
  const Floats error = reinterpret_cast<Floats>(reinterpret_cast<Words>(x - rounded) & is_finite);
  StoreSome(row.weights + begin, halves, n);
  StoreSome(row.errors + begin, error, n);
}

// Slots: floats, or moments of bfloat16, for which there are random numbers below 2^16.
TFX_INLINE void StoreSlot(float* to, Floats x, Words, int64_t n) { StoreSome(to, x, n); }
TFX_INLINE void StoreSlot(uint16_t* to, Floats x, Words random, int64_t n) {
  StoreSome(to, NarrowAtRandom(x, random), n);
}

// Changes up to kLanes weights w with gradient g. Where Adam's v is one a row, it is in the rate.
template <RowMethod kMethod, bool kRowWise>
TFX_INLINE Floats NewWeights(const RowStep& s, Floats rate, Floats w, Floats g, Floats* slot_0,
                             Floats* slot_1) {
  (void)slot_1;
  if constexpr (kMethod == RowMethod::kSgd) {
    return w - rate * g;
  } else if constexpr (kMethod == RowMethod::kMomentum || kMethod == RowMethod::kNesterov) {
    const Floats change = rate * g;
    const Floats m = *slot_0 = Broadcast(s.momentum) * *slot_0 - change;
    if constexpr (kMethod == RowMethod::kMomentum) return w + m;
    return w + (Broadcast(s.momentum) * m - change);
  } else if constexpr (kMethod == RowMethod::kAdagrad) {
    const Floats sum = *slot_0 = MulAdd(g, g, *slot_0);
    return w - rate * g / Sqrt(sum + s.epsilon);
  } else {
    const Floats m = *slot_0 = MulAdd(Broadcast(s.rest_1), g, Broadcast(s.momentum) * *slot_0);
    if constexpr (kRowWise) return w - rate * m;
    const Floats v = *slot_1 = MulAdd(Broadcast(s.rest_2), g * g, Broadcast(s.beta_2) * *slot_1);
    return w - rate * m / (Sqrt(v) + s.epsilon);
  }
}

template <RowMethod kMethod, bool kRowWise>
constexpr int kNumSlots = kMethod == RowMethod::kSgd                 ? 0
                          : kMethod == RowMethod::kAdam && !kRowWise ? 2
                                                                     : 1;

// The sum of function(i, n) over a row, which gets kLanes numbers from i on, and at the end n <
// kLanes.
template <typename Function>
TFX_INLINE float SumOver(int64_t n, const Function& function) {
  Floats sum = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = function(i, kLanes, sum);
  if (i < n) sum = function(i, n - i, sum);
  return Sum(sum);
}

// The multiple of a row of weights to subtract from the gradient, which makes it tangent to the
// sphere: <w, g> / <w, w>.
template <typename Row>
float Radial(const Row& row, const float* gradient, int64_t n) {
  const float squares =
      SumOver(n, [=](int64_t i, int64_t size, Floats sum) __attribute__((always_inline)) {
        const Floats w = LoadWeights(row, i, size);
        return MulAdd(w, w, sum);
      });
  const float along =
      SumOver(n, [=](int64_t i, int64_t size, Floats sum) __attribute__((always_inline)) {
        return MulAdd(LoadWeights(row, i, size), LoadSome(gradient + i, size), sum);
      });
  return squares == 0 ? 0 : along / squares;
}

// Divides a row by its norm, if that is neither 0 nor, within rounding, 1.
template <typename Row>
void Normalize(const Row& row, int64_t n) {
  constexpr float kTolerance = sizeof(*row.weights) == 2 ? 0x1p-7f : 1e-6f;  // of the square
  const float squares =
      SumOver(n, [=](int64_t i, int64_t size, Floats sum) __attribute__((always_inline)) {
        const Floats w = LoadWeights(row, i, size);
        return MulAdd(w, w, sum);
      });
  if (squares == 0 || __builtin_fabsf(squares - 1) <= kTolerance) return;
  const Floats factor = Broadcast(1 / __builtin_sqrtf(squares));
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t size = Min(n - i, kLanes);
    StoreWeights(row, i, factor * LoadWeights(row, i, size), size);
  }
}

// A gradient less `radial` times the weights, which may be infinite where that is 0.
TFX_INLINE Floats Tangent(Floats gradient, float radial, Floats weights) {
  return radial == 0 ? gradient : gradient - Broadcast(radial) * weights;
}

// The sum of squares of a gradient less `radial` times the weights.
template <typename Row>
float Squares(const Row& row, float radial, const float* gradient, int64_t n) {
  return SumOver(n, [=](int64_t i, int64_t size, Floats sum) __attribute__((always_inline)) {
    const Floats g = Tangent(LoadSome(gradient + i, size), radial, LoadWeights(row, i, size));
    return MulAdd(g, g, sum);
  });
}

// The factor that scales a gradient with this sum of squares to the clip norm.
float ClipScale(float clip_norm, float squares) {
  const float norm = __builtin_sqrtf(squares);
  return norm > clip_norm ? clip_norm / norm : 1.0f;
}

// Weights [begin, begin + n) of a row, by scale * (gradient - radial * weights).
template <RowMethod kMethod, bool kRowWise, typename Moment, typename Row>
TFX_INLINE void StepPart(const RowStep& s, float rate, const Row& row, const RowPlace& place,
                         const float* gradient, float scale, float radial, int64_t begin,
                         int64_t n) {
  constexpr int kSlots = kNumSlots<kMethod, kRowWise>;
  const Floats before = LoadWeights(row, begin, n);
  const Floats g = Broadcast(scale) * Tangent(LoadSome(gradient + begin, n), radial, before);
  const Floats w = Broadcast(s.kept) * before;
  Moment* to[2];
  Floats slots[2] = {};
  for (int i = 0; i < kSlots; ++i) {
    to[i] = static_cast<Moment*>(place.slots[i]) + begin;
    slots[i] = LoadSome(to[i], n);
  }
  const Floats changed =
      NewWeights<kMethod, kRowWise>(s, Broadcast(rate), w, g, &slots[0], &slots[1]);
  StoreWeights(row, begin, changed, n);
  Words random = {};
  if constexpr (sizeof(Moment) == 2) {
    const auto key = static_cast<uint32_t>(place.key);
    random = RandomWords(static_cast<uint32_t>(place.key >> 32), ~key, begin);
  }
  for (int i = 0; i < kSlots; ++i) {
    StoreSlot(to[i], slots[i], i == 0 ? random & 0xffff : random >> 16, n);
  }
}

template <RowMethod kMethod, bool kRowWise, typename Moment, typename Row>
void StepRow(const RowStep& s, float rate, const Row& row, const RowPlace& place,
             const float* gradient, float scale, float radial, int64_t n) {
  const auto part = [&](int64_t begin, int64_t size) __attribute__((always_inline)) {
    StepPart<kMethod, kRowWise, Moment>(s, rate, row, place, gradient, scale, radial, begin, size);
  };
  int64_t begin = 0;
  for (; begin + kLanes <= n; begin += kLanes) part(begin, kLanes);
  if (begin < n) part(begin, n - begin);
}

// The learning rate of a row with a mean of g^2, over the root of what is kept of it.
float RowWiseRate(const RowStep& s, float rate, float mean, float* of_row) {
  if (s.method == RowMethod::kAdagrad) {
    *of_row += mean;
    return rate / __builtin_sqrtf(*of_row + s.epsilon);
  }
  *of_row = s.beta_2 * *of_row + s.rest_2 * mean;
  return rate / (__builtin_sqrtf(*of_row) + s.epsilon);
}

// A step of a method with moments.
template <RowMethod kMethod, bool kRowWise, typename Row>
void StepMoments(const RowStep& s, float rate, const Row& row, const RowPlace& place,
                 const float* gradient, float scale, float radial, int64_t n) {
  const auto step = s.bfloat16_moments ? StepRow<kMethod, kRowWise, uint16_t, Row>
                                       : StepRow<kMethod, kRowWise, float, Row>;
  step(s, rate, row, place, gradient, scale, radial, n);
}

template <typename Row>
void StepOfRow(const RowStep& s, float rate, const Row& row, const RowPlace& place,
               const float* gradient, int64_t n) {
  const float radial = s.unit_rows ? Radial(row, gradient, n) : 0.0f;
  float scale = 1;
  if (s.row_wise || s.clip_norm != __builtin_inff()) {
    const float squares = Squares(row, radial, gradient, n);
    scale = ClipScale(s.clip_norm, squares);
    if (s.row_wise && n > 0) {
      const float most = s.clip_norm * s.clip_norm;
      const float mean = (squares < most ? squares : most) / static_cast<float>(n);
      rate = RowWiseRate(s, rate, mean, place.of_row);
    }
  }
  const auto step = [&]() {
    switch (s.method) {
      case RowMethod::kSgd:
        return StepRow<RowMethod::kSgd, false, float, Row>;
      case RowMethod::kMomentum:
        return StepMoments<RowMethod::kMomentum, false, Row>;
      case RowMethod::kNesterov:
        return StepMoments<RowMethod::kNesterov, false, Row>;
      case RowMethod::kAdagrad:  // whose root is in the rate, where it is one a row
        return s.row_wise ? StepRow<RowMethod::kSgd, false, float, Row>
                          : StepRow<RowMethod::kAdagrad, false, float, Row>;
      default:
        return s.row_wise ? StepMoments<RowMethod::kAdam, true, Row>
                          : StepMoments<RowMethod::kAdam, false, Row>;
    }
  }();
  step(s, rate, row, place, gradient, scale, radial, n);
}

template <typename Row>
void StepOf(const RowStep& s, float rate, const Row& row, const RowPlace& place,
            const float* gradient, int64_t n) {
  StepOfRow(s, rate, row, place, gradient, n);
  if (s.unit_rows) Normalize(row, n);
}

void Step(const RowStep& s, float rate, const RowPlace& place, bool is_bfloat16,
          const float* gradient, int64_t n) {
  if (!is_bfloat16) {
    return StepOf(s, rate, FloatRow{static_cast<float*>(place.weights)}, place, gradient, n);
  }
  auto* const weights = static_cast<uint16_t*>(place.weights);
  switch (s.rounding) {
    case Rounding::kNearest:
      return StepOf(s, rate, BfloatRow{weights}, place, gradient, n);
    case Rounding::kCompensated:
      return StepOf(s, rate, CompensatedRow{weights, place.errors}, place, gradient, n);
    case Rounding::kStochastic: {
      RandomRow row = {weights, static_cast<uint32_t>(place.key),
                       static_cast<uint32_t>(place.key >> 32)};
      StepOfRow(s, rate, row, place, gradient, n);
      row.high = ~row.high;  // other random bits
      if (s.unit_rows) Normalize(row, n);
    }
  }
}

// Asks for a row that is needed soon.
template <typename Weight>
TFX_INLINE void PrefetchRow(const Weight* row, int64_t width) {
  constexpr int64_t kOfLine = 64 / sizeof(Weight);
  for (int64_t d = 0; d < width; d += kOfLine) __builtin_prefetch(row + d);
  if (width > 0) __builtin_prefetch(row + width - 1);
}

// sums[j] = <row j, hidden[j]>.
template <int kRows, typename Weight>
TFX_INLINE void Dots(const Weight* const* rows, int64_t width, const float* const* hidden,
                     float* sums) {
  Floats parts[kRows] = {};
  int64_t d = 0;
  for (; d + kLanes <= width; d += kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      parts[j] = MulAdd(Load(rows[j] + d), Load(hidden[j] + d), parts[j]);
    }
  }
  if (d < width) {
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      parts[j] =
          MulAdd(LoadSome(rows[j] + d, width - d), LoadSome(hidden[j] + d, width - d), parts[j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kRows; ++j) sums[j] = Sum(parts[j]);
}

TFX_INLINE float Number(float x) { return x; }
TFX_INLINE float Number(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float result;
  memcpy(&result, &bits, sizeof(result));
  return result;
}

template <int kRows, typename Weight>
TFX_INLINE void LogitsOf(const Weight* kernel, const Weight* bias, int64_t width,
                         const int64_t* ids, const float* h, float* out) {
  const Weight* rows[kRows];
  const float* hidden[kRows];
  for (int j = 0; j < kRows; ++j) {
    rows[j] = kernel + (ids[j] < 0 ? 0 : ids[j]) * width;
    hidden[j] = h;
  }
  Dots<kRows>(rows, width, hidden, out);
  for (int j = 0; j < kRows; ++j) {
    if (ids[j] < 0) {
      out[j] = 0;
    } else if (bias != nullptr) {
      out[j] += Number(bias[ids[j]]);
    }
  }
}

template <typename Weight>
void LogitsOfType(const Weight* kernel, const Weight* bias, int64_t width, const int64_t* ids,
                  int64_t n, const float* h, float* out) {
  constexpr int kRows = 4;
  auto prefetch = [=](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end && j < n; ++j) {
      if (ids[j] < 0) continue;
      PrefetchRow(kernel + ids[j] * width, width);
      if (bias != nullptr) __builtin_prefetch(bias + ids[j]);
    }
  };
  prefetch(0, kRowsAhead);
  int64_t j = 0;
  for (; j + kRows <= n; j += kRows) {
    prefetch(j + kRowsAhead, j + kRowsAhead + kRows);
    LogitsOf<kRows>(kernel, bias, width, ids + j, h, out + j);
  }
  for (; j < n; ++j) LogitsOf<1>(kernel, bias, width, ids + j, h, out + j);
}

void Logits(const void* kernel, const void* bias, bool is_bfloat16, int64_t width,
            const int64_t* ids, int64_t n, const float* h, float* out) {
  if (is_bfloat16) {
    LogitsOfType(static_cast<const uint16_t*>(kernel), static_cast<const uint16_t*>(bias), width,
                 ids, n, h, out);
  } else {
    LogitsOfType(static_cast<const float*>(kernel), static_cast<const float*>(bias), width, ids, n,
                 h, out);
  }
}

template <int kPairs, typename Weight>
TFX_INLINE void PairLogitsOf(const Weight* kernel, const Weight* bias, int64_t width,
                             const ClassExample* pairs, const float* hidden, float* out) {
  const Weight* rows[kPairs];
  const float* of_pairs[kPairs];
  for (int j = 0; j < kPairs; ++j) {
    rows[j] = kernel + pairs[j].class_id * width;
    of_pairs[j] = hidden + pairs[j].example * width;
  }
  Dots<kPairs>(rows, width, of_pairs, out);
  if (bias == nullptr) return;
  for (int j = 0; j < kPairs; ++j) out[j] += Number(bias[pairs[j].class_id]);
}

template <typename Weight>
void PairLogitsOfType(const Weight* kernel, const Weight* bias, int64_t width,
                      const ClassExample* pairs, int64_t n, const float* hidden, float* out) {
  constexpr int kPairs = 4;
  auto prefetch = [=](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end && j < n; ++j) {
      PrefetchRow(kernel + pairs[j].class_id * width, width);
      PrefetchRow(hidden + pairs[j].example * width, width);
      if (bias != nullptr) __builtin_prefetch(bias + pairs[j].class_id);
    }
  };
  prefetch(0, kRowsAhead);
  int64_t j = 0;
  for (; j + kPairs <= n; j += kPairs) {
    prefetch(j + kRowsAhead, j + kRowsAhead + kPairs);
    PairLogitsOf<kPairs>(kernel, bias, width, pairs + j, hidden, out + j);
  }
  for (; j < n; ++j) PairLogitsOf<1>(kernel, bias, width, pairs + j, hidden, out + j);
}

void PairLogits(const void* kernel, const void* bias, bool is_bfloat16, int64_t width,
                const ClassExample* pairs, int64_t n, const float* hidden, float* out) {
  if (is_bfloat16) {
    PairLogitsOfType(static_cast<const uint16_t*>(kernel), static_cast<const uint16_t*>(bias),
                     width, pairs, n, hidden, out);
  } else {
    PairLogitsOfType(static_cast<const float*>(kernel), static_cast<const float*>(bias), width,
                     pairs, n, hidden, out);
  }
}

// Vectors [0, kVectors) of `to` = (`adds`: old value +) sum of g times row_of(term), over terms.
template <int kVectors, bool adds, typename RowOf>
TFX_INLINE void SumVectors(const ClassTerm* terms, int64_t n, const RowOf& row_of, float* to) {
  Floats sums[kVectors] = {};
#pragma GCC unroll 8
  for (int v = 0; adds && v < kVectors; ++v) sums[v] = Load(to + v * kLanes);
  for (int64_t t = 0; t < n; ++t) {
    const Floats g = Broadcast(terms[t].gradient);
    const auto* row = row_of(terms[t]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[v] = MulAdd(g, Load(row + v * kLanes), sums[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) Store(to + v * kLanes, sums[v]);
}

// Likewise for rows of `width` numbers, which begin at rows + index_of(term) * width.
template <bool adds, typename Number, typename IndexOf>
TFX_INLINE void SumRows(const ClassTerm* terms, int64_t n, const Number* rows, int64_t width,
                        const IndexOf& index_of, float* to) {
  constexpr int kMost = 8;
  int64_t d = 0;
  const auto row_of = [&](const ClassTerm& term) __attribute__((always_inline)) {
    return rows + index_of(term) * width + d;
  };
  for (; d + kMost * kLanes <= width; d += kMost * kLanes) {
    SumVectors<kMost, adds>(terms, n, row_of, to + d);
  }
  for (; d + 2 * kLanes <= width; d += 2 * kLanes) SumVectors<2, adds>(terms, n, row_of, to + d);
  for (; d + kLanes <= width; d += kLanes) SumVectors<1, adds>(terms, n, row_of, to + d);
  if (d == width) return;
  Floats sum = adds ? LoadSome(to + d, width - d) : Floats{};
  for (int64_t t = 0; t < n; ++t) {
    sum = MulAdd(Broadcast(terms[t].gradient), LoadSome(row_of(terms[t]), width - d), sum);
  }
  StoreSome(to + d, sum, width - d);
}

void SumExamples(const ClassTerm* terms, int64_t n, const float* hidden, int64_t width,
                 float* result) {
  const auto example_of = [](const ClassTerm& term) { return int64_t{term.example}; };
  SumRows<false>(terms, n, hidden, width, example_of, result);
}

template <typename Weight>
void AddRowsOfType(const ClassTerm* terms, int64_t n, const Weight* kernel, int64_t width,
                   float* hidden_gradient) {
  const ClassTerm* ahead = terms;
  const ClassTerm* const end = terms + n;
  const auto class_of = [](const ClassTerm& term) { return int64_t{term.class_id}; };
  while (terms < end) {
    const ClassTerm* next = terms + 1;
    while (next < end && next->example == terms->example) ++next;
    for (; ahead < end && ahead - next < kRowsAhead; ++ahead) {
      PrefetchRow(kernel + ahead->class_id * width, width);
    }
    float* to = hidden_gradient + terms->example * width;  // of one example
    SumRows<true>(terms, next - terms, kernel, width, class_of, to);
    terms = next;
  }
}

void AddRows(const ClassTerm* terms, int64_t n, const void* kernel, bool is_bfloat16, int64_t width,
             float* hidden_gradient) {
  if (is_bfloat16) {
    AddRowsOfType(terms, n, static_cast<const uint16_t*>(kernel), width, hidden_gradient);
  } else {
    AddRowsOfType(terms, n, static_cast<const float*>(kernel), width, hidden_gradient);
  }
}

void WidenArray(const uint16_t* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(to + i, Load(from + i));
  if (i < n) StoreSome(to + i, LoadSome(from + i, n - i), n - i);
}

int64_t FindOutside(const int64_t* ids, int64_t n, int64_t lowest, int64_t end) {
  constexpr int64_t kBlock = 64;
  const uint64_t size = end - lowest;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    uint64_t wrong = 0;
    for (int64_t j = 0; j < kBlock; ++j) {
      wrong |= static_cast<uint64_t>(ids[i + j]) - static_cast<uint64_t>(lowest) >= size;
    }
    if (wrong != 0) break;
  }
  while (i < n && ids[i] >= lowest && ids[i] < end) ++i;
  return i;
}

}  // namespace

const RowKernels kRowKernels = {Step,    Logits,     PairLogits, SumExamples,
                                AddRows, WidenArray, FindOutside};

}  // namespace tfx::core::TFX_ISA
