// SPDX-License-Identifier: Apache-2.0

#include "core/instruction_set.h"

#include <cstdlib>
#include <string>

#include "tests/expect.h"

namespace tfx::core {

TEST(EachSupportedSetCanBeForced) {
  for (InstructionSet set : kInstructionSets) {
    setenv("TFX_LARGEOUT_ISA", InstructionSetName(set), 1);
    InstructionSet chosen;
    std::string error;
    const bool ok = ChooseInstructionSet(&chosen, &error);
    EXPECT(ok == Supports(set));
    if (ok) EXPECT(chosen == set);
    if (!ok) EXPECT(error.find(InstructionSetName(set)) != std::string::npos);
  }
}

TEST(AnUnknownNameIsRefused) {
  setenv("TFX_LARGEOUT_ISA", "avx", 1);
  InstructionSet chosen;
  std::string error;
  EXPECT(!ChooseInstructionSet(&chosen, &error));
  EXPECT(error == "TFX_LARGEOUT_ISA must be baseline, avx2, avx512 or avx512_bf16; got avx");
}

TEST(TheBestIsTheDefault) {
  for (const char* value : {"", static_cast<const char*>(nullptr)}) {
    value == nullptr ? unsetenv("TFX_LARGEOUT_ISA") : setenv("TFX_LARGEOUT_ISA", value, 1);
    InstructionSet chosen;
    std::string error;
    EXPECT(ChooseInstructionSet(&chosen, &error));
    for (InstructionSet set : kInstructionSets) EXPECT(chosen >= set || !Supports(set));
  }
}

}  // namespace tfx::core
