// SPDX-License-Identifier: Apache-2.0

#include "core/row_update.h"

#include <algorithm>
#include <limits>

#include "core/prefetch.h"

namespace tfx::core {
namespace {

constexpr int64_t kRowsAhead = 8;
constexpr uint32_t kLastAge = std::numeric_limits<int32_t>::max();

char* RowOf(const WeightRows& rows, int64_t row) {
  const int64_t size = rows.width * (rows.is_bfloat16 ? 2 : 4);
  return static_cast<char*>(rows.weights) + row * size;
}

float* SlotOf(const WeightRows& rows, int slot, int64_t row) {
  return rows.slots[slot] == nullptr ? nullptr : rows.slots[slot] + row * rows.width;
}

}  // namespace

void PrefetchRow(const WeightRows& rows, int64_t row) {
  PrefetchBytes(RowOf(rows, row), rows.width * (rows.is_bfloat16 ? 2 : 4));
  for (int slot = 0; slot < 2; ++slot) {
    if (rows.slots[slot] != nullptr) PrefetchBytes(SlotOf(rows, slot, row), rows.width * 4);
  }
  if (rows.ages != nullptr) PrefetchBytes(rows.ages + row, sizeof(*rows.ages));
}

void RowUpdater::Update(const WeightRows& rows, int64_t row, const float* gradient) const {
  float rate = step_.learning_rate;
  if (rows.ages != nullptr) {
    uint32_t& age = rows.ages[row];
    age = std::min(age, kLastAge - 1) + 1;  // stays at the end
    rate *= correction_->At(static_cast<int32_t>(age));
  }
  const RowPlace place = {RowOf(rows, row), {SlotOf(rows, 0, row), SlotOf(rows, 1, row)}};
  kernels_.step(step_, rate, place, rows.is_bfloat16, gradient, rows.width);
}

void UpdateRows(const RowUpdater& updater, const WeightRows& rows, const int64_t* ids, int64_t n,
                const float* gradient, const Execution& execution) {
  const auto work = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < std::min(begin + kRowsAhead, end); ++i) {
      PrefetchRow(rows, ids[i]);
    }
    for (int64_t i = begin; i < end; ++i) {
      if (i + kRowsAhead < end) PrefetchRow(rows, ids[i + kRowsAhead]);
      updater.Update(rows, ids[i], gradient + i * rows.width);
    }
  };
  execution.parallel_for(n, work, 50 + rows.width);
}

}  // namespace tfx::core
