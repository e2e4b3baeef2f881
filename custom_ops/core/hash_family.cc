// SPDX-License-Identifier: Apache-2.0

#include "core/hash_family.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace tfx::core {
namespace {

bool IsZero(const float* x, int64_t n) {
  return std::all_of(x, x + n, [](float element) { return element == 0.0f; });
}

// Bits [first, first + n) of a string of bits; n <= 32.
int32_t BitsAt(const uint64_t* bits, int64_t first, int64_t n) {
  const int64_t word = first / 64, shift = first % 64;
  uint64_t value = bits[word] >> shift;
  if (shift + n > 64) value |= bits[word + 1] << (64 - shift);
  return static_cast<int32_t>(value & ((uint64_t{1} << n) - 1));
}

}  // namespace

Hasher::Hasher(const HashFamily& family, int64_t begin, int64_t end, const Execution& execution)
    : family_(family),
      begin_(begin),
      end_(end),
      execution_(execution),
      first_hash_(family.FirstHash(begin)),
      last_hash_(family.LastHash(end)) {
  if (family.planes != nullptr) {
    const int64_t columns = last_hash_ - first_hash_, panel = execution.dense.panel_width;
    const int64_t num_panels = BlocksOf(columns, panel);
    panels_ = execution.Take<float>(num_panels * panel * family.width);
    execution.dense.pack_transposed(family.planes + first_hash_ * family.width, family.width,
                                    family.width, columns, 0, num_panels, panels_);
  }
}

int64_t Hasher::ScratchSize() const {
  const int64_t hashes = last_hash_ - first_hash_, lanes = execution_.hashes.lanes;
  const int64_t of_codes = family_.planes != nullptr
                               ? kRows * hashes + 2 * (hashes / 64 + 2)
                               : (family_.width + hashes + 1) * lanes + family_.bins;
  constexpr int64_t kLine = 16;  // scratch of another thread begins on another line
  return (kRows * family_.width + of_codes + kLine - 1) / kLine * kLine;
}

int64_t Hasher::Codes(const LayerWeights& rows, const int32_t* ids, int64_t n, float* scratch,
                      int32_t* codes, int64_t stride) const {
  const int64_t width = family_.width;
  float* vectors = scratch;
  int32_t ranges[kRows];
  for (int64_t i = 0; i < n; ++i) ranges[i] = CopyRow(rows, ids[i], vectors + i * width);
  if (!execution_.dense.all_finite(vectors, n * width)) {
    int64_t i = 0;
    while (execution_.dense.all_finite(vectors + i * width, width)) ++i;
    return i;
  }
  float* rest = scratch + kRows * width;
  if (family_.planes != nullptr) {
    PlaneCodes(vectors, n, rest, codes, stride);
  } else {
    WinnerCodes(vectors, n, rest, codes, stride);
  }
  const auto buckets_of_range = static_cast<int32_t>(family_.BucketsOfRange());
  for (int64_t i = 0; i < n; ++i) {
    const bool is_zero = IsZero(vectors + i * width, width);
    if (!is_zero && ranges[i] == 0) continue;
    for (int64_t t = 0; t < end_ - begin_; ++t) {
      int32_t& code = codes[t * stride + i];
      if (is_zero) {
        code = kNoCode;
      } else if (code != kNoCode) {
        code += ranges[i] * buckets_of_range;
      }
    }
  }
  return n;
}

int32_t Hasher::CopyRow(const LayerWeights& rows, int64_t row, float* vector) const {
  if (rows.is_bfloat16) {
    execution_.rows.widen(static_cast<const uint16_t*>(rows.Row(row)), rows.width, vector);
  } else {
    std::copy_n(static_cast<const float*>(rows.Row(row)), rows.width, vector);
  }
  if (family_.num_radii == 0) return 0;
  float bias = 0;
  if (rows.bias != nullptr && rows.is_bfloat16) {
    execution_.rows.widen(static_cast<const uint16_t*>(rows.bias) + row, 1, &bias);
  } else if (rows.bias != nullptr) {
    bias = static_cast<const float*>(rows.bias)[row];
  }
  vector[rows.width] = bias;
  const float square = execution_.dense.dot(vector, vector, rows.width + 1);
  const float* radii = family_.radii;
  int32_t range = 0;
  while (range + 1 < family_.num_radii && square <= radii[range + 1] * radii[range + 1]) ++range;
  vector[rows.width + 1] = std::sqrt(std::max(0.0f, radii[range] * radii[range] - square));
  return range;
}

void Hasher::WinnerCodes(const float* vectors, int64_t n, float* scratch, int32_t* codes,
                         int64_t stride) const {
  const int64_t lanes = execution_.hashes.lanes, width = family_.width;
  const int64_t hashes = last_hash_ - first_hash_, k = family_.hashes_per_table;
  float* columns = scratch;
  int32_t* winners = reinterpret_cast<int32_t*>(columns + width * lanes);
  int32_t* packed = winners + hashes * lanes;
  for (int64_t first = 0; first < n; first += lanes) {
    const int64_t in_use = std::min(lanes, n - first);
    if (in_use < lanes) std::memset(columns, 0, width * lanes * sizeof(float));
    execution_.dense.transpose(vectors + first * width, width, in_use, width, columns, lanes);
    execution_.hashes.winners(columns, family_.elements + first_hash_ * family_.window,
                              family_.window, hashes, winners);
    bool is_filled = false;
    for (int64_t t = begin_; t < end_; ++t) {
      const int32_t* of_table = winners + (t * k - first_hash_) * lanes;
      bool complete = execution_.hashes.pack_winners(of_table, k, family_.window, packed);
      if (!complete && !is_filled) {
        FillEmpty(winners, packed + lanes);
        is_filled = true;
        complete = execution_.hashes.pack_winners(of_table, k, family_.window, packed);
      }
      for (int64_t lane = 0; lane < in_use; ++lane) {
        bool has_code = complete;
        if (!complete) {
          has_code = true;
          for (int64_t i = 0; i < k; ++i) has_code = has_code && of_table[i * lanes + lane] >= 0;
        }
        codes[(t - begin_) * stride + first + lane] = has_code ? packed[lane] : kNoCode;
      }
    }
  }
}

// Gives empty bins the value of the nearest one of their permutation that is not; without bins, 0.
// `before` has room for the bins of a permutation.
void Hasher::FillEmpty(int32_t* winners, int32_t* before) const {
  const int64_t lanes = execution_.hashes.lanes, bins = family_.bins;
  const int64_t hashes = last_hash_ - first_hash_;
  if (bins == 1) {
    for (int64_t i = 0; i < hashes * lanes; ++i) winners[i] = std::max(winners[i], 0);
    return;
  }
  for (int64_t group = 0; group < hashes; group += bins) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      int32_t* bin = winners + group * lanes + lane;
      for (int64_t j = 0; j < bins; ++j) before[j] = bin[j * lanes];
      for (int64_t j = 0; j < bins; ++j) {
        for (int64_t d = 1; bin[j * lanes] < 0 && 2 * d <= bins; ++d) {
          const int32_t later = before[(j + d) % bins];
          bin[j * lanes] = later >= 0 ? later : before[(j - d + bins) % bins];
        }
      }
    }
  }
}

void Hasher::PlaneCodes(const float* vectors, int64_t n, float* scratch, int32_t* codes,
                        int64_t stride) const {
  const int64_t hashes = last_hash_ - first_hash_, k = family_.hashes_per_table;
  float* products = scratch;
  uint64_t* bits = reinterpret_cast<uint64_t*>(products + kRows * hashes);
  execution_.dense.multiply(
      {vectors, family_.width, 1, panels_, family_.width, hashes, products, hashes, 1.0f, 0.0f}, 0,
      n, false);
  for (int64_t i = 0; i < n; ++i) {
    execution_.hashes.positive(products + i * hashes, hashes, bits);
    for (int64_t t = begin_; t < end_; ++t) {
      codes[(t - begin_) * stride + i] = BitsAt(bits, t * k - first_hash_, k);
    }
  }
}

int64_t HashCodes(const HashFamily& family, const LayerWeights& rows, const Execution& execution,
                  int32_t* codes) {
  constexpr int64_t kRows = Hasher::kRows;
  const int64_t num_rows = rows.num_classes, num_tables = family.num_tables;
  if (num_rows == 0) return -1;  // no memory for rows that may be as long as they like
  const Hasher hasher(family, 0, num_tables, execution);
  float* scratch = execution.Take<float>(execution.num_workers * hasher.ScratchSize());
  int32_t* by_table = execution.Take<int32_t>(execution.num_workers * num_tables * kRows);
  std::atomic<int64_t> bad{-1};
  const auto work = [&](int64_t first, int64_t end, int worker) {
    const int64_t n = end - first;
    int32_t ids[kRows];
    for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(first + i);
    int32_t* some = by_table + worker * num_tables * kRows;
    const int64_t good =
        hasher.Codes(rows, ids, n, scratch + worker * hasher.ScratchSize(), some, kRows);
    if (good < n) NoteFirst(first + good, &bad);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t t = 0; t < num_tables; ++t) {
        codes[(first + i) * num_tables + t] = some[t * kRows + i];
      }
    }
  };
  execution.Run({{"hash", {InBlocks(num_rows, kRows, work)}}});
  return bad;
}

}  // namespace tfx::core
