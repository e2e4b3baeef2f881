// SPDX-License-Identifier: Apache-2.0
//
// Code compiled once per instruction set: constants with the same name, in a namespace per set.
// Plain macros, for sources compiled once per instruction set.

#ifndef TFX_LARGEOUT_CORE_FOR_SETS_H_
#define TFX_LARGEOUT_CORE_FOR_SETS_H_

// TFX_FOR_SETS declares in each namespace; TFX_FOR_BFLOAT16_SETS also in the one for bfloat16
// products. TFX_OF_SET and TFX_OF_BFLOAT16_SET are the `name` of an InstructionSet that the
// processor supports.
#ifdef __x86_64__
#define TFX_FOR_SETS(declaration) \
  namespace baseline {            \
  declaration;                    \
  }                               \
  namespace avx2 {                \
  declaration;                    \
  }                               \
  namespace avx512 {              \
  declaration;                    \
  }
#define TFX_FOR_BFLOAT16_SETS(declaration) \
  TFX_FOR_SETS(declaration) namespace avx512_bf16 { declaration; }
#define TFX_OF_SET(name, set)                      \
  ((set) >= InstructionSet::kAvx512 ? avx512::name \
   : (set) == InstructionSet::kAvx2 ? avx2::name   \
                                    : baseline::name)
#define TFX_OF_BFLOAT16_SET(name, set) \
  ((set) == InstructionSet::kAvx512Bf16 ? avx512_bf16::name : TFX_OF_SET(name, set))
#else
#define TFX_FOR_SETS(declaration) \
  namespace baseline {            \
  declaration;                    \
  }
#define TFX_FOR_BFLOAT16_SETS(declaration) TFX_FOR_SETS(declaration)
#define TFX_OF_SET(name, set) (static_cast<void>(set), baseline::name)
#define TFX_OF_BFLOAT16_SET(name, set) TFX_OF_SET(name, set)
#endif

#endif  // TFX_LARGEOUT_CORE_FOR_SETS_H_
