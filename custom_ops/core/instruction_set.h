// SPDX-License-Identifier: Apache-2.0
//
// The compiled instruction set that the hot loops use.

#ifndef TFX_LARGEOUT_CORE_INSTRUCTION_SET_H_
#define TFX_LARGEOUT_CORE_INSTRUCTION_SET_H_

#include <string>

namespace tfx::core {

// kAvx512Bf16 is kAvx512 with products of bfloat16.
enum class InstructionSet { kBaseline, kAvx2, kAvx512, kAvx512Bf16 };

// From the best to the least.
constexpr InstructionSet kInstructionSets[] = {InstructionSet::kAvx512Bf16, InstructionSet::kAvx512,
                                               InstructionSet::kAvx2, InstructionSet::kBaseline};

// "baseline", "avx2", "avx512" or "avx512_bf16".
const char* InstructionSetName(InstructionSet set);

// True if this processor runs code that is compiled for `set`, and such code was compiled.
bool Supports(InstructionSet set);

// Sets *chosen to the best supported set, or to the value of the environment variable
// TFX_LARGEOUT_ISA. Returns false, with a sentence in *error, if this value is unknown or not
// supported here.
// REQUIRES: chosen and error are not null.
bool ChooseInstructionSet(InstructionSet* chosen, std::string* error);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_INSTRUCTION_SET_H_
