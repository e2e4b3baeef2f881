// SPDX-License-Identifier: Apache-2.0

#include "tests/expect.h"

#include <cstdio>

namespace tfx::test {
namespace {

int failures = 0;

}  // namespace

void Expect(bool ok, const char* what, const char* file, int line) {
  if (ok) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
}

int Result() { return failures > 0 ? 1 : 0; }

}  // namespace tfx::test
