// SPDX-License-Identifier: Apache-2.0
//
// products.h where kernels run on the processor (cuda_on_cpu.h).

#include <cstring>

#include "core/gpu/products.h"

namespace tfx::core::gpu {
namespace {

float FromBits(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

float ToTf32(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return FromBits((bits + 0x1000) & ~0x1fffu);
}

float NumberOf(const Factor& factor, Precision precision, int64_t i) {
  if (precision == Precision::kBfloat16) {
    return FromBits(uint32_t{static_cast<const uint16_t*>(factor.numbers)[i]} << 16);
  }
  const float number = static_cast<const float*>(factor.numbers)[i];
  return precision == Precision::kTf32 ? ToTf32(number) : number;
}

}  // namespace

Error Multiply(CUstream_st*, Precision precision, const Factor& left, const Factor& right,
               int64_t rows, int64_t columns, int64_t depth, bool adds, float* product) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < depth; ++k) {
        sum += NumberOf(left, precision, left.is_transposed ? k * rows + i : i * depth + k) *
               NumberOf(right, precision, right.is_transposed ? j * depth + k : k * columns + j);
      }
      float& to = product[i * columns + j];
      to = adds ? to + sum : sum;
    }
  }
  return {};
}

Error AddProduct(CUstream_st*, const Factor64& a, const Factor64& b, int64_t depth,
                 const ProductSum& c) {
  const auto at = [](const Factor64& f, int64_t i, int64_t j) {
    return f.is_transposed ? f.data[j * f.stride + i] : f.data[i * f.stride + j];
  };
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.columns; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += at(a, i, k) * at(b, k, j);
      double* to = c.data + i * c.stride + j;
      *to = c.alpha * sum + (c.beta == 0 ? 0 : c.beta * *to);
    }
  }
  return {};
}

}  // namespace tfx::core::gpu
