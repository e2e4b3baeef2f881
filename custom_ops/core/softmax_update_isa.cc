// SPDX-License-Identifier: Apache-2.0
//
// Compiled once an instruction set: see cmake/instruction_sets.cmake for what may be included.
//
// A block of classes meets the examples group by group. The gradient G of a group's logits is made
// slab by slab, and takes part in two products while it is in the caches: dL/dW = G^T h, over the
// examples, and dL/dh = G W, over the classes.

#include "core/softmax_update_isa.h"

#include "core/logit_slabs.h"
#include "core/product_tile.h"
#include "core/simd.h"
#include "core/vector_exp.h"

namespace tfx::core::TFX_ISA {
namespace {

constexpr int kPanelLanes = kPanelVectors * kLanes;
constexpr int kProductRows = kTileRows<kPanelVectors>;
// Lanes of a group: a multiple of panels and of kProductRows; twice as many where two make up an
// element, so that products over them are as deep.
template <typename Element>
constexpr int kGroupLanes = 96 * kNumbersOf<Element>;
constexpr int kMostGroupLanes = kGroupLanes<Rounded>;

TFX_INLINE int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t PaddedWidth(int64_t width) { return RoundUp(width, kPanelLanes); }
int64_t PaddedLanes(int64_t num_panels) {
  return RoundUp(num_panels * kPanelLanes, kMostGroupLanes);
}

// A worker's memory besides the gradients.
struct Scratch {
  float* rows;           // of W, [R, D]: as logits need them
  float* floats;         // of W, [R, D]: if they are not floats in memory
  float* columns;        // of W, [R, padded width]: see PackColumns
  float* biases;         // [R]
  float* bias_sums;      // [R, kLanes]
  float* over_examples;  // G of a group, [R, kGroupLanes]: elements along the examples
  float* over_classes;   // elements along the classes; the same where elements are floats

  Scratch(float* memory, int64_t width) {
    const int64_t block = RowsOfBlock(width);
    rows = memory;
    floats = rows + block * width;
    columns = floats + block * width;
    biases = columns + block * PaddedWidth(width);
    bias_sums = biases + block;
    over_examples = bias_sums + block * kLanes;
    over_classes = over_examples + block * kMostGroupLanes;
  }
};

int64_t ScratchSize(int64_t width) {
  const int64_t block = RowsOfBlock(width);
  return block * (2 * width + PaddedWidth(width) + 1 + kLanes + 2 * kMostGroupLanes);
}

// Numbers of one row, or of two, as elements that are neighbours along the depth.
TFX_INLINE Floats Elements(const Floats* rows, float) { return rows[0]; }
#if defined(__AVX512BF16__)
TFX_INLINE Words Elements(const Floats* rows, Rounded) { return RoundedElements(rows[0], rows[1]); }
#endif

// Puts rows [n, width] into panels of kPanelLanes columns, each [depth, kPanelLanes], one after the
// other; 0 beyond the width and beyond n.
template <typename Element>
void PackColumns(const float* rows, int64_t n, int64_t width, int64_t depth, bool rounded,
                 Element* to) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t j = 0; j < PaddedWidth(width); j += kLanes) {
      Floats numbers[2] = {};
      for (int64_t i = 0; i < kNumbersOf<Element>; ++i) {
        const int64_t row = k * kNumbersOf<Element> + i;
        const int64_t left = width - j;
        if (row >= n || left <= 0) continue;
        numbers[i] = LoadSome(rows + row * width + j, Min(left, kLanes));
        if (rounded) numbers[i] = Widen(Narrow(numbers[i]));
      }
      const int64_t panel = j / kPanelLanes;
      Store(to + (panel * depth + k) * kPanelLanes + j % kPanelLanes, Elements(numbers, Element{}));
    }
  }
}

void PackHiddenColumns(const float* hidden, int64_t batch, int64_t width, bool rounded, float* to) {
  const int64_t lanes = RoundUp(batch, kPanelLanes);
  if (rounded) {
    PackColumns(hidden, batch, width, DepthOf<Rounded>(lanes), true,
                reinterpret_cast<Rounded*>(to));
  } else {
    PackColumns(hidden, batch, width, lanes, false, to);
  }
}

// to[i, :] += left[i, :] panel, for n rows, rounded up to tiles; `to` is kPanelLanes wide.
template <typename Element>
void AddProduct(LeftFactor<Element> left, int64_t n, int64_t depth, const Element* panel, float* to,
                int64_t to_row) {
  constexpr float kZeros[kProductRows] = {};
  for (int64_t i = 0; i < n; i += kProductRows) {
    Floats sums[kProductRows][kPanelVectors];
    ComputeTile<kProductRows, kPanelVectors>(left, depth, panel, kPanelLanes, kZeros, sums);
#pragma GCC unroll 16
    for (int row = 0; row < kProductRows; ++row) {
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) {
        float* at = to + row * to_row + v * kLanes;
        Store(at, Load(at) + sums[row][v]);
      }
    }
    left.at += kProductRows * left.row;
    to += kProductRows * to_row;
  }
}

// Turns logits of a slab into gradients, for vector v of a panel. Terms belong to its classes.
void ToGradients(const SoftmaxUpdatePass& pass, const HiddenPanel& panel, int v, int64_t first,
                 int num_rows, const LabelTerm* terms, const LabelTerm* terms_end, Slab* slab) {
  const int64_t lane = panel.first_lane + v * kLanes;
  const Floats logsumexp = Load(pass.logsumexp + lane), scale = Load(pass.scales + lane),
               offset = Load(pass.offsets + lane);
#pragma GCC unroll 4
  for (int i = 0; i < num_rows; ++i) {
    const Floats p = ExpOfNonPositive(Min(Floats{}, (*slab)[i] - logsumexp));
    (*slab)[i] = MulAdd(scale, p, offset);
  }
  for (const LabelTerm* term = terms; term < terms_end; ++term) {
    const int64_t lane_of_vector = term->lane - lane;
    if (lane_of_vector < 0 || lane_of_vector >= kLanes) continue;
    (*slab)[term->class_id - first][lane_of_vector] += term->gradient;
  }
}

// Writes the gradients of a slab's rows from `row` on, for lanes of a group from `lane` on, as both
// products need them, `rounded` or not. Both arrays are [R, kGroupLanes] numbers.
TFX_INLINE void StoreGradients(const Slab& slab, int num_rows, int64_t row, int64_t lane,
                               bool rounded, float* to_examples, float*) {
  for (int i = 0; i < num_rows; ++i) {
    const Floats g = rounded ? Widen(Narrow(slab[i])) : slab[i];
    Store(to_examples + (row + i) * kGroupLanes<float> + lane, g);
  }
}
#if defined(__AVX512BF16__)
TFX_INLINE void StoreGradients(const Slab& slab, int num_rows, int64_t row, int64_t lane, bool,
                               Rounded* to_examples, Rounded* to_classes) {
  constexpr int kLanesOfGroup = kGroupLanes<Rounded>;
  for (int i = 0; i < num_rows; i += 2) {
    const Floats pair[2] = {slab[i], i + 1 < num_rows ? slab[i + 1] : Floats{}};
    for (int j = 0; j < 2; ++j) {
      Store(to_examples + ((row + i + j) * kLanesOfGroup + lane) / 2, RoundedElements(pair[j]));
    }
    Store(to_classes + (row + i) / 2 * kLanesOfGroup + lane, RoundedElements(pair[0], pair[1]));
  }
}
#endif

void AddSums(const Slab& slab, int num_rows, float* sums) {
  for (int i = 0; i < num_rows; ++i) Store(sums + i * kLanes, Load(sums + i * kLanes) + slab[i]);
}

template <typename Element>
class Block {
 public:
  Block(const SoftmaxUpdatePass& pass, int64_t first, int64_t num_rows, const LabelTerm* terms,
        const LabelTerm* terms_end, float* scratch, const SoftmaxBlockGradients& gradients)
      : pass_(pass),
        first_(first),
        num_rows_(num_rows),
        terms_(terms),
        terms_end_(terms_end),
        scratch_(scratch, pass.layer.width),
        gradients_(gradients),
        padded_width_(PaddedWidth(pass.layer.width)) {
    over_examples_ = reinterpret_cast<Element*>(scratch_.over_examples);
    over_classes_ = kNumbersOf<Element> == 1 ? over_examples_
                                             : reinterpret_cast<Element*>(scratch_.over_classes);
  }

  void Run() {
    const LogitRows& layer = pass_.layer;
    const int64_t width = layer.width;
    rows_ = static_cast<const Element*>(Rows(layer, first_, num_rows_, scratch_.rows));
    biases_ = Biases(layer, first_, num_rows_, scratch_.biases);
    const float* floats = AsFloats(layer.kernel, layer.is_bfloat16, first_ * width,
                                   num_rows_ * width, scratch_.floats);
    PackColumns(floats, num_rows_, width, DepthOf<Element>(num_rows_), layer.rounds,
                reinterpret_cast<Element*>(scratch_.columns));
    const int64_t block = RowsOfBlock(width);
    if (gradients_.kernel != nullptr) {
      memset(gradients_.kernel, 0, block * padded_width_ * sizeof(float));
    }
    memset(scratch_.bias_sums, 0, block * kLanes * sizeof(float));
    constexpr int64_t kPanelsOfGroup = kGroupLanes<Element> / kPanelLanes;
    for (int64_t p = 0; p < pass_.num_panels; p += kPanelsOfGroup) {
      VisitGroup(p, Min(p + kPanelsOfGroup, pass_.num_panels));
    }
    for (int64_t i = 0; i < num_rows_; ++i) {
      gradients_.bias[i] = Sum(Load(scratch_.bias_sums + i * kLanes));
    }
  }

 private:
  void VisitGroup(int64_t begin, int64_t end) {
    // Values that slabs don't write are 0: lanes beyond the batch, and rows up to a whole tile.
    const int64_t size = RoundUp(num_rows_, kSlabRows) * kGroupLanes<Element> / kNumbersOf<Element>;
    memset(over_examples_, 0, size * sizeof(Element));
    if (over_classes_ != over_examples_) memset(over_classes_, 0, size * sizeof(Element));
    for (int64_t p = begin; p < end; ++p) MakeGradients(pass_.panels[p], (p - begin) * kPanelLanes);

    const int64_t first_lane = begin * kPanelLanes, lanes = (end - begin) * kPanelLanes;
    const auto* hidden = reinterpret_cast<const Element*>(pass_.columns);
    const auto* kernel = reinterpret_cast<const Element*>(scratch_.columns);
    const int64_t batch_depth = DepthOf<Element>(pass_.num_panels * kPanelLanes);
    const int64_t block_depth = DepthOf<Element>(num_rows_);
    const LeftFactor<Element> by_class = {over_examples_,
                                          kGroupLanes<Element> / kNumbersOf<Element>, 1};
    const LeftFactor<Element> by_example = {over_classes_, 1, kGroupLanes<Element>};
    for (int64_t j = 0; j < padded_width_; j += kPanelLanes) {
      if (gradients_.kernel != nullptr) {
        AddProduct(by_class, num_rows_, DepthOf<Element>(lanes),
                   hidden + j * batch_depth + DepthOf<Element>(first_lane) * kPanelLanes,
                   gradients_.kernel + j, padded_width_);
      }
      AddProduct(by_example, lanes, block_depth, kernel + j * block_depth,
                 gradients_.hidden + first_lane * padded_width_ + j, padded_width_);
    }
  }

  void MakeGradients(const HiddenPanel& panel, int64_t lane_of_group) {
    typedef Wide<Element, kPanelVectors> Kind;
    const int64_t depth = DepthOf<Element>(pass_.layer.width);
    const LabelTerm* terms = terms_;
    for (int64_t row = 0; row < num_rows_; row += kSlabRows) {
      const int size = Min(num_rows_ - row, kSlabRows);
      const LabelTerm* next = terms;
      while (next < terms_end_ && next->class_id < first_ + row + size) ++next;
      Slab slabs[kPanelVectors];
      Kind::Compute(rows_ + row * depth, biases_ + row, size, pass_.layer.width, panel, slabs);
      for (int v = 0; v < kPanelVectors; ++v) {
        ToGradients(pass_, panel, v, first_ + row, size, terms, next, &slabs[v]);
        StoreGradients(slabs[v], size, row, lane_of_group + v * kLanes, pass_.layer.rounds,
                       over_examples_, over_classes_);
        AddSums(slabs[v], size, scratch_.bias_sums + row * kLanes);
      }
      terms = next;
    }
  }

  const SoftmaxUpdatePass& pass_;
  const int64_t first_, num_rows_;
  const LabelTerm *terms_, *terms_end_;
  const Scratch scratch_;
  const SoftmaxBlockGradients& gradients_;
  const int64_t padded_width_;
  const Element* rows_;
  const float* biases_;
  Element *over_examples_, *over_classes_;
};

void VisitBlock(const SoftmaxUpdatePass& pass, int64_t first, int64_t num_rows,
                const LabelTerm* terms, const LabelTerm* terms_end, float* scratch,
                const SoftmaxBlockGradients& gradients) {
  if (pass.layer.rounds) {
    Block<Rounded>(pass, first, num_rows, terms, terms_end, scratch, gradients).Run();
  } else {
    Block<float>(pass, first, num_rows, terms, terms_end, scratch, gradients).Run();
  }
}

}  // namespace

const SoftmaxUpdateIsa kSoftmaxUpdate = {kPanelLanes, RowsOfBlock, PaddedWidth,       PaddedLanes,
                                         ScratchSize, PackPanel,   PackHiddenColumns, VisitBlock};

}  // namespace tfx::core::TFX_ISA
