// SPDX-License-Identifier: Apache-2.0

#include "tests/expect.h"

#include <cstdio>
#include <vector>

namespace tfx::test {
namespace {

int failures = 0;

std::vector<void (*)()>& Tests() {
  static std::vector<void (*)()> tests;
  return tests;
}

}  // namespace

void Expect(bool ok, const char* what, const char* file, int line) {
  if (ok) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
}

Registered::Registered(void (*test)()) { Tests().push_back(test); }

// Returns how many tests there are.
int RunAll() {
  for (const auto test : Tests()) test();
  return static_cast<int>(Tests().size());
}

bool HasFailed() { return failures > 0; }

}  // namespace tfx::test

int main() { return tfx::test::RunAll() > 0 && !tfx::test::HasFailed() ? 0 : 1; }
