// SPDX-License-Identifier: Apache-2.0

#include "core/row_update.h"

#include <algorithm>
#include <limits>

#include "core/keep_random.h"
#include "core/prefetch.h"

namespace tfx::core {
namespace {

constexpr int64_t kRowsAhead = 8;
constexpr uint32_t kLastAge = std::numeric_limits<int32_t>::max();

// A row of a matrix with a number of bytes per row; null if there is no matrix.
char* RowOf(void* matrix, int64_t row, int64_t bytes) {
  return matrix == nullptr ? nullptr : static_cast<char*>(matrix) + row * bytes;
}

}  // namespace

void PrefetchRow(const WeightRows& rows, int64_t row) {
  const int64_t bytes = rows.width * (rows.is_bfloat16 ? 2 : 4);
  const int64_t slot_bytes = rows.width * (rows.bfloat16_slots ? 2 : 4);
  PrefetchBytes(RowOf(rows.weights, row, bytes), bytes);
  for (void* slot : rows.slots) {
    if (slot != nullptr) PrefetchBytes(RowOf(slot, row, slot_bytes), slot_bytes);
  }
  if (rows.ages != nullptr) PrefetchBytes(rows.ages + row, sizeof(*rows.ages));
  if (rows.of_rows != nullptr) PrefetchBytes(rows.of_rows + row, sizeof(*rows.of_rows));
  if (rows.errors != nullptr) PrefetchBytes(rows.errors + row * rows.width, bytes);
}

void RowUpdater::Update(const WeightRows& rows, int64_t row, const float* gradient) const {
  float rate = step_.learning_rate;
  if (rows.ages != nullptr) {
    uint32_t& age = rows.ages[row];
    age = std::min(age, kLastAge - 1) + 1;  // stays at the end
    rate *= correction_->At(static_cast<int32_t>(age));
  }
  const int64_t slot_bytes = rows.width * (rows.bfloat16_slots ? 2 : 4);
  RowPlace place = {RowOf(rows.weights, row, rows.width * (rows.is_bfloat16 ? 2 : 4)),
                    {RowOf(rows.slots[0], row, slot_bytes), RowOf(rows.slots[1], row, slot_bytes)}};
  if (rows.of_rows != nullptr) place.of_row = rows.of_rows + row;
  if (rows.errors != nullptr) place.errors = rows.errors + row * rows.width;
  if (step_.bfloat16_moments || step_.rounding == Rounding::kStochastic) {
    place.key = Scrambled(rows.key ^ static_cast<uint64_t>(rows.shard.ClassOf(row)));
  }
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
