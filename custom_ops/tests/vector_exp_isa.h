// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_TESTS_VECTOR_EXP_ISA_H_
#define TFX_LARGEOUT_TESTS_VECTOR_EXP_ISA_H_

namespace tfx::core {

// exp(x) by ExpOfNonPositive of one instruction set.
namespace baseline {
float ExpOf(float x);
}
#ifdef __x86_64__
namespace avx2 {
float ExpOf(float x);
}
namespace avx512 {
float ExpOf(float x);
}
#endif

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_TESTS_VECTOR_EXP_ISA_H_
