// SPDX-License-Identifier: Apache-2.0
//
// The least that a unit test needs.

#ifndef TFX_LARGEOUT_TESTS_EXPECT_H_
#define TFX_LARGEOUT_TESTS_EXPECT_H_

namespace tfx::test {

// Prints and counts a failure unless `ok`.
void Expect(bool ok, const char* what, const char* file, int line);

// What main returns: 1 if an expectation failed, else 0.
int Result();

}  // namespace tfx::test

#define EXPECT(condition) ::tfx::test::Expect((condition), #condition, __FILE__, __LINE__)

#endif  // TFX_LARGEOUT_TESTS_EXPECT_H_
