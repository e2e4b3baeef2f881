// SPDX-License-Identifier: Apache-2.0

#include "core/instruction_set.h"

#include <cstdlib>

namespace tfx::core {
namespace {

// From the best to the least.
constexpr InstructionSet kAll[] = {InstructionSet::kAvx512, InstructionSet::kAvx2,
                                   InstructionSet::kBaseline};

}  // namespace

const char* InstructionSetName(InstructionSet set) {
  switch (set) {
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
  switch (set) {
    case InstructionSet::kAvx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
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
  for (InstructionSet set : kAll) {
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
  *error = "TFX_LARGEOUT_ISA must be baseline, avx2 or avx512; got " + std::string(wanted);
  return false;
}

}  // namespace tfx::core
