// SPDX-License-Identifier: Apache-2.0
//
// Compiled once an instruction set: see cmake/instruction_sets.cmake for what may be included.

#include "core/dense_kernels_isa.h"

#include "core/dense_tile.h"
#include "core/simd.h"

namespace tfx::core::TFX_ISA {
namespace {

// Rows [k, k + depth) of B and columns [j, end), at most a strip. A strip does not read beyond B:
// at its right edge it starts before j, and if B has fewer columns than a strip it is in `copy`.
template <typename T>
Strip<T> StripOf(const Product<T>& p, int64_t k, int64_t depth, int64_t j, int64_t end, T* copy) {
  const int64_t columns = end - j;
  if (p.b_row == 0) return {p.b + j * p.depth + k * kWidth<T>, kWidth<T>, 0, columns};
  const T* from = p.b + k * p.b_row + j;
  const int64_t missing = kWidth<T> - (p.columns - j);
  if (missing <= 0) return {from, p.b_row, 0, columns};
  if (missing <= j) return {from - missing, p.b_row, missing, missing + columns};
  memset(copy, 0, depth * kWidth<T> * sizeof(T));
  CopyRows(from, p.b_row, depth, p.columns, copy, kWidth<T>);
  return {copy, kWidth<T>, 0, columns};
}

template <typename T>
void Multiply(const Product<T>& p, int64_t begin, int64_t end, bool lower) {
  const int64_t columns_end = lower ? Min(p.columns, end) : p.columns;
  T copy[kDepthBlock * kWidth<T>];
  int64_t k = 0;
  do {  // once even if the depth is 0
    const int64_t depth = Min(kDepthBlock, p.depth - k);
    const T beta = k == 0 ? p.beta : T{1};
    for (int64_t j = 0; j < columns_end; j += kWidth<T>) {
      const Strip<T> strip = StripOf(p, k, depth, j, Min(j + kWidth<T>, columns_end), copy);
      const int64_t above = lower && j > begin ? (j - begin) / kTileRows * kTileRows : 0;
      for (int64_t i = begin + above; i < end; i += kTileRows) {
        MultiplyTileOf<T>(end - i, p, p.a + i * p.a_row + k * p.a_column, strip, depth, beta,
                          p.c + i * p.c_row + j);
      }
    }
    k += kDepthBlock;
  } while (k < p.depth);
}

template <typename T>
void Pack(const T* b, int64_t b_row, int64_t depth, int64_t columns, int64_t begin, int64_t end,
          T* panels) {
  for (int64_t k = begin; k < end; ++k) {
    const T* from = b + k * b_row;
    T* to = panels + k * kWidth<T>;
    int64_t j = 0;
    for (; j + kWidth<T> <= columns; j += kWidth<T>) {
      Store(to, Load(from + j));
      Store(to + kVector<T>, Load(from + j + kVector<T>));
      to += depth * kWidth<T>;
    }
    if (j == columns) continue;
    for (int64_t lane = 0; lane < kWidth<T>; ++lane) {
      to[lane] = j + lane < columns ? from[j + lane] : 0;
    }
  }
}

template <typename T>
struct FourOf {
  typedef T Type __attribute__((vector_size(4 * sizeof(T))));
};

// Transposes 4 x 4 numbers.
template <typename T>
TFX_INLINE void TransposeTile(const T* from, int64_t from_row, T* to, int64_t to_row) {
  typedef typename FourOf<T>::Type Four;
  Four rows[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) memcpy(&rows[i], from + i * from_row, sizeof(Four));
  const Four low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Four low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Four high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Four high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  Store(to, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
  Store(to + to_row, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
  Store(to + 2 * to_row, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
  Store(to + 3 * to_row, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
}

template <typename T>
void Transpose(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to,
               int64_t to_row) {
  constexpr int64_t kBlock = 16;  // of columns: a cache line of each row
  const int64_t whole_rows = rows - rows % 4;
  for (int64_t first = 0; first < columns; first += kBlock) {
    const int64_t end = Min(first + kBlock, columns), whole_end = end - (end - first) % 4;
    for (int64_t i = 0; i < whole_rows; i += 4) {
      for (int64_t j = first; j < whole_end; j += 4) {
        TransposeTile(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
      }
    }
    for (int64_t j = first; j < end; ++j) {
      for (int64_t i = j < whole_end ? whole_rows : 0; i < rows; ++i) {
        to[j * to_row + i] = from[i * from_row + j];
      }
    }
  }
}

template <typename T>
void PackTransposed(const T* x, int64_t x_row, int64_t depth, int64_t columns, int64_t begin,
                    int64_t end, T* panels) {
  for (int64_t p = begin; p < end; ++p) {
    T* panel = panels + p * depth * kWidth<T>;
    const int64_t first = p * kWidth<T>;
    const int64_t used = Min(kWidth<T>, columns - first);
    Transpose(x + first * x_row, x_row, used, depth, panel, kWidth<T>);
    for (int64_t k = 0; used < kWidth<T> && k < depth; ++k) {
      T* row = panel + k * kWidth<T>;
      for (int64_t lane = used; lane < kWidth<T>; ++lane) row[lane] = 0;
    }
  }
}

// Columns that are eliminated together.
constexpr int64_t kBlock = 32;

// Room for the columns of a block below its diagonal, in panels, and for the block's I - L.
template <typename T>
int64_t FactorScratch(int64_t size) {
  return kBlock * (kBlock + size + kWidth<T>);
}

// Factors the diagonal block of `size` columns at k. Row i loses, for each column j before it,
// s_j / R_jj K_ij K_j: `multiples[j]` holds s_j / R_jj K_j.
template <typename T>
bool FactorBlock(const Factorization<T>& f, int64_t first, int64_t size, T* factors, T* lower) {
  T multiples[kBlock * kBlock] = {};
  for (int64_t i = 0; i < size; ++i) {
    T* source = f.k + (first + i) * f.size + first;
    T row[kBlock] = {};
    for (int64_t j = 0; j <= i; ++j) row[j] = source[j];
    for (int64_t j = 0; j < i; ++j) {
      T* multiple = multiples + j * kBlock;
      multiple[i] = lower[i * kBlock + j] = factors[j] * row[j];
      const auto x = Broadcast(row[j]);
      for (int64_t k = j / kVector<T> * kVector<T>; k <= i; k += kVector<T>) {
        Store(row + k, MulAdd(x, Load(multiple + k), Load(row + k)));
      }
    }
    for (int64_t j = 0; j <= i; ++j) source[j] = row[j];
    const T pivot = 1 - f.s[first + i] * row[i];
    if (!(pivot >= f.min_pivot && pivot <= f.max_pivot)) return false;
    f.pivots[first + i] = pivot;
    factors[i] = f.s[first + i] / pivot;
  }
  return true;
}

// Solves (I - lower) X = B for the rows of a tile; earlier rows are already solved.
template <typename T, int kRows>
void SolveForwardTile(const T* lower, int64_t lower_row, int64_t row, T* panel) {
  Pair<T> x[kRows];
  T* at = panel + row * kWidth<T>;
  const T* factor = lower + row * lower_row;
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    x[i][0] = Load(at + i * kWidth<T>);
    x[i][1] = Load(at + i * kWidth<T> + kVector<T>);
  }
  AddProduct<T, kRows>(factor, lower_row, 1, {panel, kWidth<T>, 0, kWidth<T>}, row, x);
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < i; ++j) {
      const auto l = Broadcast(factor[i * lower_row + row + j]);
      x[i][0] = MulAdd(l, x[j][0], x[i][0]);
      x[i][1] = MulAdd(l, x[j][1], x[i][1]);
    }
    Store(at + i * kWidth<T>, x[i][0]);
    Store(at + i * kWidth<T> + kVector<T>, x[i][1]);
  }
}

template <typename T, int kRows = kTileRows>
TFX_INLINE void SolveForwardTileOf(int64_t rows, const T* lower, int64_t lower_row, int64_t row,
                                   T* panel) {
  if (rows >= kRows) {
    SolveForwardTile<T, kRows>(lower, lower_row, row, panel);
  } else if constexpr (kRows > 1) {
    SolveForwardTileOf<T, kRows - 1>(rows, lower, lower_row, row, panel);
  }
}

template <typename T>
void SolveForward(const T* lower, int64_t lower_row, int64_t size, T* panel) {
  for (int64_t row = 0; row < size; row += kTileRows) {
    SolveForwardTileOf<T>(size - row, lower, lower_row, row, panel);
  }
}

// Eliminates a block of columns from the rows below it, then takes their products off the rest.
template <typename T>
void EliminateBlock(const Factorization<T>& f, int64_t first, int64_t size, const T* factors,
                    const T* lower, T* panels) {
  const int64_t n = f.size, next = first + size, rest = n - next;
  T* below = f.k + next * n + first;
  for (int64_t j = 0; j < rest; j += kWidth<T>) {
    const int64_t rows = Min(kWidth<T>, rest - j);
    T* panel = panels + j * size;
    PackTransposed<T>(below + j * n, n, size, rows, 0, 1, panel);
    SolveForward(lower, kBlock, size, panel);
    Transpose(panel, kWidth<T>, size, rows, below + j * n, n);
    for (int64_t k = 0; k < size; ++k) {
      const auto factor = Broadcast(factors[k]);
      T* row = panel + k * kWidth<T>;
      Store(row, factor * Load(row));
      Store(row + kVector<T>, factor * Load(row + kVector<T>));
    }
  }
  Multiply<T>({below, n, 1, panels, size, rest, f.k + next * n + next, n, 1, 1}, 0, rest, true);
}

// The lower triangle of K now has its values from the elimination of their column.
template <typename T>
void SplitFactors(const Factorization<T>& f) {
  const int64_t n = f.size;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) f.lower[i * n + j] = f.k[i * n + j] * f.s[j] / f.pivots[j];
  }
  Transpose(f.k, n, n, n, f.upper, n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i + 1; j < n; ++j) f.upper[i * n + j] *= f.s[j] / f.pivots[i];
  }
}

template <typename T>
bool Factor(const Factorization<T>& f) {
  T* lower = f.scratch;
  T* panels = lower + kBlock * kBlock;
  T factors[kBlock];
  for (int64_t first = 0; first < f.size; first += kBlock) {
    const int64_t size = Min(kBlock, f.size - first);
    if (!FactorBlock(f, first, size, factors, lower)) return false;
    EliminateBlock(f, first, size, factors, lower, panels);
  }
  SplitFactors(f);
  return true;
}

// Solves R X = B for the rows of a tile; later rows are already solved.
template <typename T, int kRows>
void SolveBackward(const Factorization<T>& f, int64_t row, T* panel) {
  Pair<T> x[kRows];
  T* at = panel + row * kWidth<T>;
  const T* factor = f.upper + row * f.size;
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    const auto inverse = Broadcast(1 / f.pivots[row + i]);
    x[i][0] = inverse * Load(at + i * kWidth<T>);
    x[i][1] = inverse * Load(at + i * kWidth<T> + kVector<T>);
  }
  AddProduct<T, kRows>(factor + row + kRows, f.size, 1,
                       {at + kRows * kWidth<T>, kWidth<T>, 0, kWidth<T>}, f.size - row - kRows, x);
#pragma GCC unroll 12
  for (int i = kRows - 1; i >= 0; --i) {
#pragma GCC unroll 12
    for (int j = i + 1; j < kRows; ++j) {
      const auto r = Broadcast(factor[i * f.size + row + j]);
      x[i][0] = MulAdd(r, x[j][0], x[i][0]);
      x[i][1] = MulAdd(r, x[j][1], x[i][1]);
    }
    Store(at + i * kWidth<T>, x[i][0]);
    Store(at + i * kWidth<T> + kVector<T>, x[i][1]);
  }
}

template <typename T, int kRows = kTileRows>
TFX_INLINE void SolveBackwardOf(int64_t rows, const Factorization<T>& f, int64_t row, T* panel) {
  if (rows >= kRows) {
    SolveBackward<T, kRows>(f, row, panel);
  } else if constexpr (kRows > 1) {
    SolveBackwardOf<T, kRows - 1>(rows, f, row, panel);
  }
}

template <typename T>
void Solve(const Factorization<T>& f, T* panel) {
  SolveForward(f.lower, f.size, f.size, panel);
  for (int64_t row = (f.size - 1) / kTileRows * kTileRows; row >= 0; row -= kTileRows) {
    SolveBackwardOf<T>(f.size - row, f, row, panel);
  }
}

template <typename T>
T Dot(const T* x, const T* y, int64_t n) {
  typename VectorOf<T>::Type sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kVector<T> <= n; i += 4 * kVector<T>) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const int64_t at = i + v * kVector<T>;
      sums[v] = MulAdd(Load(x + at), Load(y + at), sums[v]);
    }
  }
  const auto sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  T total = 0;
  for (int lane = 0; lane < kVector<T>; ++lane) total += sum[lane];
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

template <typename T>
void Add(T a, const T* x, int64_t n, T* y) {
  int64_t i = 0;
  for (; i + kVector<T> <= n; i += kVector<T>) {
    Store(y + i, MulAdd(Broadcast(a), Load(x + i), Load(y + i)));
  }
  for (; i < n; ++i) y[i] += a * x[i];
}

// 0 x is 0, or NaN.
template <typename T>
bool AllFinite(const T* x, int64_t n) {
  typename VectorOf<T>::Type zeros[4] = {};
  int64_t i = 0;
  for (; i + 4 * kVector<T> <= n; i += 4 * kVector<T>) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) zeros[v] += Broadcast(T{0}) * Load(x + i + v * kVector<T>);
  }
  const auto all = (zeros[0] + zeros[1]) + (zeros[2] + zeros[3]);
  T zero = 0;
  for (int lane = 0; lane < kVector<T>; ++lane) zero += all[lane];
  for (; i < n; ++i) zero += 0 * x[i];
  return zero == 0;
}

template <typename T>
constexpr DenseKernels<T> Kernels() {
  return {kWidth<T>,         kTileRows,    Multiply<T>,      Pack<T>,
          PackTransposed<T>, Transpose<T>, FactorScratch<T>, Factor<T>,
          Solve<T>,          Dot<T>,       Add<T>,           AllFinite<T>};
}

}  // namespace

const DenseKernels<float> kFloatKernels = Kernels<float>();
const DenseKernels<double> kDoubleKernels = Kernels<double>();

}  // namespace tfx::core::TFX_ISA
