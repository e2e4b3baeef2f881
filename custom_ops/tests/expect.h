// SPDX-License-Identifier: Apache-2.0
//
// Minimal functions for unit tests.

#ifndef TFX_LARGEOUT_TESTS_EXPECT_H_
#define TFX_LARGEOUT_TESTS_EXPECT_H_

namespace tfx::test {

// Prints and counts a failure unless `ok`.
void Expect(bool ok, const char* what, const char* file, int line);

// A test; main runs tests in the order of the file.
struct Registered {
  explicit Registered(void (*test)());
};

}  // namespace tfx::test

#define EXPECT(condition) ::tfx::test::Expect((condition), #condition, __FILE__, __LINE__)

#define TEST(name)                                      \
  void name();                                          \
  const ::tfx::test::Registered registered##name(name); \
  void name()

#endif  // TFX_LARGEOUT_TESTS_EXPECT_H_
