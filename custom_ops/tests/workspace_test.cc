// SPDX-License-Identifier: Apache-2.0

#include "core/workspace.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/pool.h"
#include "tests/expect.h"

namespace tfx::core {

constexpr int64_t kPage = 1 << 16;

// Takes arrays like an op of this shape: small and large ones in turn, and some taken repeatedly by
// a part of the call. Returns their bytes (the maximum over parts), and sets *held to the bytes
// held while it runs.
int64_t Call(Workspace& workspace, int64_t shape, bool large_last, int64_t* held = nullptr) {
  const Workspace::Scope scope(workspace);
  std::vector<int64_t> sizes = {shape * 20'000, shape * 100, shape * 3'000, 5};
  if (large_last) std::reverse(sizes.begin(), sizes.end());
  std::vector<char*> arrays;
  int64_t sum = 0;
  const auto take = [&](int64_t n) {
    char* array = workspace.Take<char>(n);
    EXPECT(reinterpret_cast<uintptr_t>(array) % 64 == 0);
    std::memset(array, static_cast<int>(arrays.size() + 1), n);
    arrays.push_back(array);
    sum += (n + 63) / 64 * 64;
  };
  for (int64_t n : sizes) take(n);
  for (int part = 0; part < 3; ++part) {
    const Workspace::Scope of_part(workspace);
    std::memset(workspace.Take<char>(shape * 1'000), 99, shape * 1'000);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT(std::all_of(arrays[i], arrays[i] + sizes[i],
                       [=](char x) { return x == static_cast<char>(i + 1); }));
  }
  if (held != nullptr) *held = workspace.held();
  return sum + (shape * 1'000 + 63) / 64 * 64;
}

// Whatever the order of shapes, no more is held than the largest needs.
TEST(ShapesInAnyOrderHoldWhatTheLargestDoes) {
  std::vector<int64_t> shapes;
  for (int64_t shape = 1; shape <= 200; ++shape) shapes.push_back(shape);
  std::vector<int64_t> falling(shapes.rbegin(), shapes.rend()), at_random = shapes;
  std::shuffle(at_random.begin(), at_random.end(), std::mt19937(1));
  for (const auto& order : {shapes, falling, at_random}) {
    Workspace workspace;
    int64_t largest = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      int64_t held = 0;
      const int64_t needed = Call(workspace, order[i], i % 2 == 0, &held);
      largest = std::max(largest, needed);
      EXPECT(held >= needed && held <= largest + largest / 50 + kPage);
    }
  }
}

TEST(WhatIsNoLongerNeededGoesBack) {
  Workspace workspace;
  Call(workspace, 200, true);
  const int64_t large = workspace.held();
  int64_t small = 0;
  for (int i = 0; i < 4 * Workspace::kCallsOfWindow; ++i) small = Call(workspace, 20, true);
  EXPECT(small < large / 5);
  EXPECT(workspace.held() <= small + (1 << 20) + kPage);
}

// The same addresses in each call, once one had to grow: pages stay warm.
TEST(ASteadyCallKeepsItsPages) {
  Workspace workspace;
  for (int i = 0; i < 2; ++i) Call(workspace, 100, true);
  const char* at = nullptr;
  for (int i = 0; i < 3 * Workspace::kCallsOfWindow; ++i) {
    const int64_t held = workspace.held();
    {
      const Workspace::Scope scope(workspace);
      const char* now = workspace.Take<char>(100 * 20'000);
      EXPECT(at == nullptr || now == at);
      at = now;
    }
    Call(workspace, 100, true);
    EXPECT(workspace.held() == held);
  }
}

TEST(WhatNoMachineHasIsRefused) {
  Workspace workspace;
  int64_t bytes = 0;
  const Workspace::Scope scope(workspace);
  workspace.Take<float>(1000);
  for (int64_t n : {int64_t{1} << 55, int64_t{1} << 62}) {
    try {
      workspace.Take<double>(n);
    } catch (const OutOfMemory& error) {
      bytes = error.bytes();
    }
    EXPECT(bytes >= int64_t{1} << 58);
  }
  std::memset(workspace.Take<char>(1000), 1, 1000);  // it still works
}

// A pool makes as many objects as were lent at once, and the warmest goes out first.
TEST(AsManyObjectsAsCallsRunSideBySide) {
  Pool<std::vector<int>> pool;
  const std::vector<int>* first;
  {
    Pool<std::vector<int>>::Loan one(pool);
    first = &*one;
    Pool<std::vector<int>>::Loan other(pool);
    EXPECT(&*other != first);
    EXPECT(pool.idle() == 0);
  }
  EXPECT(pool.idle() == 2);
  for (int i = 0; i < 2 * pool.kReturnsOfWindow; ++i) {
    Pool<std::vector<int>>::Loan one(pool);
    EXPECT(&*one == first);
  }
  EXPECT(pool.idle() == 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 1000; ++i) {
        Pool<std::vector<int>>::Loan one(pool);
        one->assign(10, t);
        EXPECT(*one == std::vector<int>(10, t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(pool.idle() <= 4);
}

}  // namespace tfx::core
