// SPDX-License-Identifier: Apache-2.0
//
// A tile of a dense product, so small that its sums stay in registers, for sources compiled once
// per instruction set. The type is float or double.

#ifndef TFX_LARGEOUT_CORE_DENSE_TILE_H_
#define TFX_LARGEOUT_CORE_DENSE_TILE_H_

#include "core/dense_kernels_isa.h"
#include "core/simd.h"

namespace tfx::core::TFX_ISA {

template <typename T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef Floats Type;
};
template <>
struct VectorOf<double> {
  typedef Doubles Type;
};

// A tile of C is kTileRows rows and two vectors wide, so that its sums stay in registers: there are
// 32 with AVX-512, else 16.
constexpr int kTileRows = kLanes == 16 ? 12 : 6;
constexpr int64_t kDepthBlock = 512;  // a panel with this depth stays in the first-level cache
template <typename T>
constexpr int kVector = 4 * kLanes / sizeof(T);
template <typename T>
constexpr int kWidth = 2 * kVector<T>;

template <typename T>
using Pair = typename VectorOf<T>::Type[2];

// Columns of B as wide as a tile, row k at `at + k * row`, of which [begin, end) are wanted.
template <typename T>
struct Strip {
  const T* at;
  int64_t row;
  int64_t begin;
  int64_t end;
};

// sums += A[0:kRows, 0:depth] * strip.
template <typename T, int kRows>
TFX_INLINE void AddProduct(const T* a, int64_t a_row, int64_t a_column, const Strip<T>& strip,
                           int64_t depth, Pair<T>* sums) {
  const T* b = strip.at;
  for (int64_t k = 0; k < depth; ++k) {
    const auto left = Load(b);
    const auto right = Load(b + kVector<T>);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const auto x = Broadcast(a[i * a_row]);
      sums[i][0] = MulAdd(x, left, sums[i][0]);
      sums[i][1] = MulAdd(x, right, sums[i][1]);
    }
    a += a_column;
    b += strip.row;
  }
}

template <typename T>
TFX_INLINE void CopyRows(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to,
                         int64_t to_row) {
  for (int64_t i = 0; i < rows; ++i)
    memcpy(to + i * to_row, from + i * from_row, columns * sizeof(T));
}

// c <- beta c + alpha sums, for a row of a tile.
template <typename T>
TFX_INLINE void StoreRow(const Pair<T>& sums, T alpha, T beta, T* c) {
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    T* at = c + v * kVector<T>;
    const auto sum = Broadcast(alpha) * sums[v];
    Store(at, beta == 0 ? sum : MulAdd(Broadcast(beta), Load(at), sum));
  }
}

template <typename T, int kRows>
TFX_INLINE void MultiplyTile(const Product<T>& p, const T* a, const Strip<T>& strip, int64_t depth,
                             T beta, T* c, int64_t c_row) {
  Pair<T> sums[kRows] = {};
  AddProduct<T, kRows>(a, p.a_row, p.a_column, strip, depth, sums);
  if (beta == 0) {
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) StoreRow<T>(sums[i], p.alpha, 0, c + i * c_row);
  } else {
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) StoreRow<T>(sums[i], p.alpha, beta, c + i * c_row);
  }
}

// A tile at the edge: only a part of it, from `c` on, belongs to C.
template <typename T, int kRows>
void MultiplyNarrowTile(const Product<T>& p, const T* a, const Strip<T>& strip, int64_t depth,
                        T beta, T* c) {
  T tile[kRows * kWidth<T>] = {};
  const int64_t columns = strip.end - strip.begin;
  if (beta != 0) CopyRows(c, p.c_row, kRows, columns, tile + strip.begin, kWidth<T>);
  MultiplyTile<T, kRows>(p, a, strip, depth, beta, tile, kWidth<T>);
  CopyRows(tile + strip.begin, kWidth<T>, kRows, columns, c, p.c_row);
}

template <typename T, int kRows = kTileRows>
TFX_INLINE void MultiplyTileOf(int64_t rows, const Product<T>& p, const T* a, const Strip<T>& strip,
                               int64_t depth, T beta, T* c) {
  if (rows >= kRows) {
    if (strip.end - strip.begin == kWidth<T>) {
      MultiplyTile<T, kRows>(p, a, strip, depth, beta, c, p.c_row);
    } else {
      MultiplyNarrowTile<T, kRows>(p, a, strip, depth, beta, c);
    }
  } else if constexpr (kRows > 1) {
    MultiplyTileOf<T, kRows - 1>(rows, p, a, strip, depth, beta, c);
  }
}

}  // namespace tfx::core::TFX_ISA

#endif  // TFX_LARGEOUT_CORE_DENSE_TILE_H_
