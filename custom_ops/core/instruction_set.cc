// SPDX-License-Identifier: Apache-2.0

#include "core/instruction_set.h"

#include <cstdlib>

namespace tfx::core {
const char* InstructionSetName(InstructionSet set) {
  switch (set) {
    case InstructionSet::kAvx512Bf16:
      return "avx512_bf16";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kBaseline:
      break;
  }
  return "baseline";
}

bool Supports(InstructionSet set) {
#ifdef __x86_64__
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  switch (set) {
    case InstructionSet::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16");
    case InstructionSet::kAvx512:
      return avx512;
    case InstructionSet::kAvx2:
      return avx2;
    case InstructionSet::kBaseline:
      break;
  }
#endif
  return set == InstructionSet::kBaseline;
}

bool ChooseInstructionSet(InstructionSet* chosen, std::string* error) {
  const char* wanted = std::getenv("TFX_LARGEOUT_ISA");
  const bool any = wanted == nullptr || *wanted == '\0';
  for (InstructionSet set : kInstructionSets) {
    if (!any && wanted != std::string(InstructionSetName(set))) continue;
    if (Supports(set)) {
      *chosen = set;
      return true;
    }
    if (!any) {
      *error = "TFX_LARGEOUT_ISA must name an instruction set that this processor has; got " +
               std::string(wanted);
      return false;
    }
  }
  *error =
      "TFX_LARGEOUT_ISA must be baseline, avx2, avx512 or avx512_bf16; got " + std::string(wanted);
  return false;
}

}  // namespace tfx::core
