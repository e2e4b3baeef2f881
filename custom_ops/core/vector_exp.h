// SPDX-License-Identifier: Apache-2.0
//
// exp of a vector of floats that are not above 0, for sources compiled once per instruction set.

#ifndef TFX_LARGEOUT_CORE_VECTOR_EXP_H_
#define TFX_LARGEOUT_CORE_VECTOR_EXP_H_

#include "core/simd.h"

namespace tfx::core::TFX_ISA {

// exp(x), within 2 units in the last place for x > -87; falls to 0 below that; NaN for NaN. x = n
// log 2 + r with |r| <= log(2) / 2; exp(r) is the polynomial of degree 6 with the smallest largest
// relative error, 4e-9.
// REQUIRES: no element of x is above 0.
TFX_INLINE Floats ExpOfNonPositive(Floats x) {
  constexpr float kLog2e = 1.44269504089f;
  constexpr float kRound = 12582912.0f;      // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLog2High = 0.693359375f;  // few bits, so that n * kLog2High is exact
  constexpr float kLog2Low = -2.12194440e-4f;
  x = Max(Broadcast(-104.0f), x);  // exp is 0 in float32 below that
  const Floats n = MulAdd(x, Broadcast(kLog2e), Broadcast(kRound)) - kRound;
  Floats r = MulAdd(n, Broadcast(-kLog2High), x);
  r = MulAdd(n, Broadcast(-kLog2Low), r);
  Floats p = Broadcast(0.0013863769f);
  p = MulAdd(p, r, Broadcast(0.0083674947f));
  p = MulAdd(p, r, Broadcast(0.041667238f));
  p = MulAdd(p, r, Broadcast(0.16666535f));
  p = MulAdd(p, r, Broadcast(0.5f));
  p = MulAdd(p, r, Broadcast(1.0f));
  p = MulAdd(p, r, Broadcast(1.0f));
  return ScaleByPowerOfTwo(p, n);
}

}  // namespace tfx::core::TFX_ISA

#endif  // TFX_LARGEOUT_CORE_VECTOR_EXP_H_
