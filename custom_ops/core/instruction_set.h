// SPDX-License-Identifier: Apache-2.0
//
// Which of the compiled instruction sets the hot loops use.

#ifndef TFX_LARGEOUT_CORE_INSTRUCTION_SET_H_
#define TFX_LARGEOUT_CORE_INSTRUCTION_SET_H_

#include <string>

namespace tfx::core {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// "baseline", "avx2" or "avx512".
const char* InstructionSetName(InstructionSet set);

// True if this processor runs code that is compiled for `set`, and such code was compiled.
bool Supports(InstructionSet set);

// Sets *chosen to the best supported set, or to the one that the environment variable
// TFX_LARGEOUT_ISA names. Returns false, with a sentence in *error, if that one is unknown or not
// supported here.
// REQUIRES: chosen and error are not null.
bool ChooseInstructionSet(InstructionSet* chosen, std::string* error);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_INSTRUCTION_SET_H_
