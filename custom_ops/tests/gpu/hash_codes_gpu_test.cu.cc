// SPDX-License-Identifier: Apache-2.0
//
// Codes on a GPU equal those on the processor, bit for bit: all numbers are small integers, so that
// products with planes are exact.

#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/gpu/hash_codes.h"
#include "tests/bfloat16.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/device_hashes.h"
#include "tests/hash_problem.h"

namespace tfx::core::gpu {
namespace {

using test::DeviceArray;
using test::DeviceFamily;

struct Outcome {
  Ids codes;
  HashFaults faults;
};

// Codes of some rows for tables [begin, end), by row; -7 where none was written.
Outcome CodesOf(const HashFamily& family, int64_t begin, int64_t end, const HashedRows& rows,
                int64_t at_a_time) {
  const int64_t num_tables = end - begin;
  const DeviceFamily device(family);
  const DeviceArray<int32_t> codes(Ids(rows.weights.num_classes * num_tables, -7));
  const DeviceArray<HashFaults> faults(1);
  Scratch count(nullptr);
  TakeHashMemory(family, begin, end, at_a_time, &count);
  const DeviceArray<uint64_t> memory(count.bytes() / sizeof(uint64_t));
  Scratch scratch(memory.data());
  const HashMemory dealt = TakeHashMemory(family, begin, end, at_a_time, &scratch);
  ClearFaults(nullptr, faults.data());
  EXPECT(HashCodes(nullptr, device.family(), begin, end, rows, dealt, {codes.data(), num_tables, 1},
                   faults.data())
             .ok());
  return {codes.Values(), faults.Values()[0]};
}

Ids OnProcessor(const HashFamily& family, const LayerWeights& weights) {
  Workspace workspace;
  const Workspace::Scope scope(workspace);
  Ids codes(weights.num_classes * family.num_tables);
  EXPECT(HashCodes(family, weights, OneWorker(InstructionSets().back(), workspace), codes.data()) ==
         -1);
  return codes;
}

TEST(CodesAreThoseOfTheProcessor) {
  std::mt19937 random(1);
  const int64_t n = 70;
  for (const Functions& functions : Families(random)) {
    const HashFamily& family = functions.family;
    const int64_t num_tables = family.num_tables;
    const Floats rows = SparseRows(n * family.width, random);
    const Ids expected = OnProcessor(family, {rows.data(), nullptr, false, n, family.width});
    const DeviceArray<float> floats(rows);
    const DeviceArray<uint16_t> halves(test::Halves(rows));
    for (const bool is_bfloat16 : {false, true}) {
      const void* data = is_bfloat16 ? static_cast<void*>(halves.data()) : floats.data();
      const LayerWeights weights = {data, nullptr, is_bfloat16, n, family.width};
      const Outcome all = CodesOf(family, 0, num_tables, {weights, nullptr, n}, 17);
      EXPECT(all.codes == expected);
      EXPECT(all.faults.element == kNoFault && all.faults.row == kNoFault);
      // Some rows for some tables.
      const Ids ids = {69, 3, 40, 4};
      const DeviceArray<int32_t> some(ids);
      const int64_t begin = 1, end = num_tables - (num_tables > 2 ? 1 : 0);
      const Outcome part = CodesOf(family, begin, end, {weights, some.data(), 4}, 100);
      Ids wanted(n * (end - begin), -7);
      for (const int32_t i : ids) {
        for (int64_t t = begin; t < end; ++t) {
          wanted[i * (end - begin) + t - begin] = expected[i * num_tables + t];
        }
      }
      EXPECT(part.codes == wanted);
    }
  }
}

TEST(RowsOfEachRangeHaveBucketsOfTheirOwn) {
  std::mt19937 random(8);
  const int64_t n = 130, width = 6;
  const Floats rows = SparseRows(n * width, random), bias = SparseRows(n, random);
  Functions functions = Functions::Signs(width + 2, 3, 4, random);
  // The number added to a row is not an integer; codes of planes show whether it is there.
  const Floats radii = {6.5f, 4.5f, 3.5f};
  functions.family.radii = radii.data();
  functions.family.num_radii = 3;
  for (int64_t j = 0; j < functions.family.num_hashes; ++j) {
    float* last = functions.planes.data() + j * (width + 2) + width + 1;
    *last = j % 2 == 0 ? 0.f : 1000.f;
  }
  const DeviceArray<float> floats(rows), biases(bias);
  const DeviceArray<uint16_t> halves(test::Halves(rows)), half_biases(test::Halves(bias));
  for (const bool has_bias : {false, true}) {
    const Ids expected = OnProcessor(
        functions.family, {rows.data(), has_bias ? bias.data() : nullptr, false, n, width});
    const LayerWeights of_floats = {floats.data(), has_bias ? biases.data() : nullptr, false, n,
                                    width};
    const LayerWeights of_halves = {halves.data(), has_bias ? half_biases.data() : nullptr, true, n,
                                    width};
    EXPECT(CodesOf(functions.family, 0, 4, {of_floats, nullptr, n}, n).codes == expected);
    EXPECT(CodesOf(functions.family, 0, 4, {of_halves, nullptr, n}, n).codes == expected);
  }
}

TEST(WhatIsRefusedIsNamed) {
  std::mt19937 random(2);
  Functions functions = Functions::Winners(9, 3, 3, 2, 2, random);
  Floats rows(100 * 9, 1.0f);
  rows[70 * 9 + 8] = std::numeric_limits<float>::quiet_NaN();
  rows[80 * 9] = std::numeric_limits<float>::infinity();
  const DeviceArray<float> device(rows);
  const LayerWeights weights = {device.data(), nullptr, false, 100, 9};
  EXPECT(CodesOf(functions.family, 0, 2, {weights, nullptr, 100}, 32).faults.row == 70);
  functions.elements[7] = 9;
  functions.elements[11] = -1;
  const HashFaults faults = CodesOf(functions.family, 0, 2, {weights, nullptr, 60}, 32).faults;
  EXPECT(faults.element == 7 && faults.row == kNoFault);
  EXPECT(CodesOf(functions.family, 0, 2, {weights, nullptr, 0}, 32).faults.row == kNoFault);
}

}  // namespace
}  // namespace tfx::core::gpu
