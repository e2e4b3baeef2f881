// SPDX-License-Identifier: Apache-2.0

#include "core/instruction_set.h"

#include <cstdlib>
#include <string>

#include "tests/expect.h"

namespace tfx::core {

void EachSupportedSetCanBeForced() {
  for (InstructionSet set :
       {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    setenv("TFX_LARGEOUT_ISA", InstructionSetName(set), 1);
    InstructionSet chosen;
    std::string error;
    const bool ok = ChooseInstructionSet(&chosen, &error);
    EXPECT(ok == Supports(set));
    if (ok) EXPECT(chosen == set);
    if (!ok) EXPECT(error.find(InstructionSetName(set)) != std::string::npos);
  }
}

void AnUnknownNameIsRefused() {
  setenv("TFX_LARGEOUT_ISA", "avx", 1);
  InstructionSet chosen;
  std::string error;
  EXPECT(!ChooseInstructionSet(&chosen, &error));
  EXPECT(error == "TFX_LARGEOUT_ISA must be baseline, avx2 or avx512; got avx");
}

void TheBestIsTheDefault() {
  for (const char* value : {"", static_cast<const char*>(nullptr)}) {
    value == nullptr ? unsetenv("TFX_LARGEOUT_ISA") : setenv("TFX_LARGEOUT_ISA", value, 1);
    InstructionSet chosen;
    std::string error;
    EXPECT(ChooseInstructionSet(&chosen, &error));
    EXPECT((chosen == InstructionSet::kAvx512) == Supports(InstructionSet::kAvx512));
  }
}

}  // namespace tfx::core

int main() {
  tfx::core::EachSupportedSetCanBeForced();
  tfx::core::AnUnknownNameIsRefused();
  tfx::core::TheBestIsTheDefault();
  return tfx::test::Result();
}
