// SPDX-License-Identifier: Apache-2.0
//
// Where a factored step ends in a new anchor, on every device.

#ifndef TFX_LARGEOUT_CORE_FACTORED_LIMITS_H_
#define TFX_LARGEOUT_CORE_FACTORED_LIMITS_H_

namespace tfx::core {

// Pivots of M's factorization within these bounds: P M^-1 loses few digits.
constexpr double kLeastPivot = 0.1;
constexpr double kMostPivot = 10;

// |U| / sqrt(D) within these bounds: no overflow lurks. Weight decay shrinks U step by step.
constexpr double kMostScale = 64;

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_FACTORED_LIMITS_H_
