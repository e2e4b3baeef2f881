// SPDX-License-Identifier: Apache-2.0
//
// Hash families and indexes for tests, on the processor and on a GPU.

#ifndef TFX_LARGEOUT_TESTS_HASH_PROBLEM_H_
#define TFX_LARGEOUT_TESTS_HASH_PROBLEM_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "core/hash_family.h"
#include "core/hash_tables.h"
#include "tests/workers.h"

namespace tfx::core {

using Floats = std::vector<float>;
using Ids = std::vector<int32_t>;

inline Execution OneWorker(InstructionSet set, Workspace& workspace) {
  static const ParallelFor on_caller = OnCaller;
  return Execution(set, 1, on_caller, workspace);
}

// Small integers, mostly 0: their products are exact, and there are ties and empty bins.
inline Floats SparseRows(int64_t size, std::mt19937& random) {
  Floats x(size);
  for (float& entry : x) {
    if (random() % 4 == 0) entry = static_cast<float>(static_cast<int>(random() % 7) - 3);
  }
  return x;
}

// A family and the data it points to.
struct Functions {
  Ids elements;
  Floats planes;
  HashFamily family;

  // Bins of one permutation after the other; a permutation per function if `bins` is 1.
  static Functions Winners(int64_t width, int64_t window, int64_t bins, int64_t k, int64_t tables,
                           std::mt19937& random) {
    Functions f;
    Ids order(width);
    std::iota(order.begin(), order.end(), 0);
    const int64_t groups = (k * tables + bins - 1) / bins;
    for (int64_t g = 0; g < groups; ++g) {
      std::shuffle(order.begin(), order.end(), random);
      f.elements.insert(f.elements.end(), order.begin(), order.begin() + bins * window);
    }
    f.family = {f.elements.data(), nullptr, groups * bins, window, bins, width, k, tables,
                nullptr,           0};
    return f;
  }

  static Functions Signs(int64_t width, int64_t k, int64_t tables, std::mt19937& random) {
    Functions f;
    f.planes = SparseRows(k * tables * width, random);
    f.family = {nullptr, f.planes.data(), k * tables, width, 1, width, k, tables, nullptr, 0};
    return f;
  }
};

// Families whose tables do not fit whole bins, and of each kind.
inline std::vector<Functions> Families(std::mt19937& random) {
  std::vector<Functions> families;
  families.push_back(Functions::Winners(30, 3, 1, 4, 5, random));
  families.push_back(Functions::Winners(30, 4, 7, 3, 6, random));
  families.push_back(Functions::Winners(127, 16, 7, 5, 4, random));
  families.push_back(Functions::Winners(8, 8, 1, 2, 3, random));
  families.push_back(Functions::Signs(30, 11, 7, random));
  families.push_back(Functions::Signs(127, 3, 2, random));
  return families;
}

// Tables with their memory.
struct Index {
  const HashFamily& family;
  int64_t num_classes, width;
  Ids entries, starts, touched_at, built_at;
  Workspace workspace;

  Index(const HashFamily& of, int64_t classes) : Index(of, classes, of.width) {}

  // For rows with another width than the hashed vectors.
  Index(const HashFamily& of, int64_t classes, int64_t width_of_rows)
      : family(of),
        num_classes(classes),
        width(width_of_rows),
        entries(of.num_tables * classes),
        starts(of.num_tables * (of.NumBuckets() + 1)),
        touched_at(classes),
        built_at(of.num_tables, -1) {}

  HashTables Tables() {
    return {entries.data(), starts.data(), family.num_tables, num_classes, family.NumBuckets()};
  }

  HashFault Update(const Floats& rows, int64_t begin, int64_t end, int32_t now, int64_t* moved) {
    const Workspace::Scope scope(workspace);
    const LayerWeights weights = {rows.data(), nullptr, false, num_classes, width};
    return UpdateTables(family, weights, {touched_at.data(), built_at.data()}, begin, end, now,
                        Tables(), OneWorker(InstructionSets().back(), workspace), moved);
  }
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_TESTS_HASH_PROBLEM_H_
