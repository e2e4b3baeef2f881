// SPDX-License-Identifier: Apache-2.0

#include "core/hash_tables.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace tfx::core {
namespace {

constexpr int64_t kRowsOfTask = 1024;
constexpr int32_t kNever = -1;
constexpr int32_t kUnchanged = -2;  // instead of a code: the row was not hashed

// The code of a class that the table before was seen to list, below kUnchanged; and back.
int32_t Seen(int32_t code) { return kUnchanged - 2 - code; }
int32_t CodeOf(int32_t code) { return code < kUnchanged ? kUnchanged - 2 - code : code; }

class Update {
 public:
  Update(const HashFamily& family, const LayerWeights& weights, const RowTimes& times,
         int64_t begin, int64_t end, int32_t now, const HashTables& tables,
         const Execution& execution)
      : weights_(weights),
        times_(times),
        begin_(begin),
        num_tables_(end - begin),
        num_classes_(tables.num_classes),
        tables_(tables),
        execution_(execution),
        hasher_(family, begin, end, execution),
        since_(TimeOfOldest(begin, end, now)),
        scratch_size_(hasher_.ScratchSize()),
        scratch_(execution.Take<float>(execution.num_workers * scratch_size_)),
        some_codes_(execution.Take<int32_t>(execution.num_workers * num_tables_ * Hasher::kRows)),
        codes_(execution.Take<int32_t>(num_tables_ * num_classes_)),
        stay_(execution.Take<int64_t>(num_tables_)),
        moved_(execution.Take<int64_t>(num_tables_)),
        is_corrupt_(execution.Take<uint8_t>(num_tables_)),
        phases_(Phases(), execution.num_workers, execution.parallel_for) {}

  // Asks for no memory.
  HashFault Run(int32_t now, int64_t* moved) {
    phases_.Run();
    if (const HashFault fault = Fault()) return fault;
    for (int64_t t = 0; t < num_tables_; ++t) {
      times_.built_at[begin_ + t] = now;
      *moved += moved_[t];
    }
    return {};
  }

 private:
  std::vector<Phase> Phases() {
    const auto hash = [this](int64_t first, int64_t last, int worker) {
      HashRows(first, last, worker);
    };
    const auto check = [this](int64_t t, int) { CheckTable(t); };
    const auto read = [this](int64_t t, int) {
      if (!is_corrupt_[t]) ReadTable(t);
    };
    const auto sort = [this](int64_t t, int) {
      if (!Fault()) SortTable(t);
    };
    return {{"hash rows", {InBlocks(num_classes_, kRowsOfTask, hash), {num_tables_, check}}},
            {"read tables", {{num_tables_, read}}},
            {"sort tables", {{num_tables_, sort}}}};
  }

  // An impossible time means a damaged table: treated as never built.
  int32_t TimeOfOldest(int64_t begin, int64_t end, int32_t now) const {
    int32_t oldest = now;
    for (int64_t t = begin; t < end; ++t) {
      const int32_t time = times_.built_at[t];
      oldest = std::min(oldest, time < kNever || time > now ? kNever : time);
    }
    return oldest;
  }

  int32_t* Codes(int64_t t) const { return codes_ + t * num_classes_; }

  HashFault Fault() const {
    const bool is_needed = num_changed_ < num_classes_;  // what the tables hold
    return {is_needed ? bad_table_.load() : -1, bad_row_};
  }

  bool HasChanged(int64_t row) const { return times_.touched_at[row] > since_; }

  // Codes for all tables of those rows, in [first, last), that have changed.
  void HashRows(int64_t first, int64_t last, int worker) {
    for (int64_t t = 0; t < num_tables_; ++t)
      std::fill(Codes(t) + first, Codes(t) + last, kUnchanged);
    int32_t ids[Hasher::kRows];
    int64_t n = 0;
    for (int64_t row = first; row < last; ++row) {
      if (HasChanged(row)) ids[n++] = static_cast<int32_t>(row);
      if (n == Hasher::kRows || row + 1 == last) {
        HashSome(ids, n, worker);
        num_changed_ += n;
        n = 0;
      }
    }
  }

  void HashSome(const int32_t* ids, int64_t n, int worker) {
    int32_t* codes = some_codes_ + worker * num_tables_ * Hasher::kRows;
    const int64_t good =
        hasher_.Codes(weights_, ids, n, scratch_ + worker * scratch_size_, codes, Hasher::kRows);
    if (good < n) NoteFirst(ids[good], &bad_row_);
    for (int64_t t = 0; t < num_tables_; ++t) {
      for (int64_t i = 0; i < n; ++i) Codes(t)[ids[i]] = codes[t * Hasher::kRows + i];
    }
  }

  void CheckTable(int64_t t) {
    const int32_t* starts = tables_.Starts(begin_ + t);
    const int32_t* entries = tables_.Entries(begin_ + t);
    bool good = starts[0] == 0 && starts[tables_.num_buckets] <= num_classes_;
    for (int64_t b = 0; good && b < tables_.num_buckets; ++b) good = starts[b] <= starts[b + 1];
    for (int64_t i = 0; good && i < starts[tables_.num_buckets]; ++i) {
      good = entries[i] >= 0 && entries[i] < num_classes_;
    }
    is_corrupt_[t] = false;
    if (!good) MarkCorrupt(t);
  }

  void MarkCorrupt(int64_t t) {
    is_corrupt_[t] = true;
    NoteFirst(begin_ + t, &bad_table_);
  }

  // Gives classes that have not changed the code that they had, and counts the classes that stay in
  // their bucket. A table that lists a class twice turns out to be corrupt.
  void ReadTable(int64_t t) {
    const int32_t* starts = tables_.Starts(begin_ + t);
    const int32_t* entries = tables_.Entries(begin_ + t);
    int32_t* codes = Codes(t);
    bool good = true;
    stay_[t] = 0;
    for (int32_t b = 0; b < tables_.num_buckets; ++b) {
      for (int32_t i = starts[b]; i < starts[b + 1]; ++i) {
        int32_t& code = codes[entries[i]];
        good = good && code >= kUnchanged;
        const int32_t now = code == kUnchanged ? b : CodeOf(code);
        stay_[t] += now == b;
        code = Seen(now);
      }
    }
    if (!good) MarkCorrupt(t);
  }

  void SortTable(int64_t t) {
    int32_t* starts = tables_.Starts(begin_ + t);
    int32_t* entries = tables_.Entries(begin_ + t);
    int32_t* codes = Codes(t);
    std::memset(starts, 0, (tables_.num_buckets + 1) * sizeof(int32_t));
    for (int64_t c = 0; c < num_classes_; ++c) {
      codes[c] = CodeOf(codes[c]);
      if (codes[c] >= 0) ++starts[codes[c] + 1];
    }
    for (int64_t b = 0; b < tables_.num_buckets; ++b) starts[b + 1] += starts[b];
    const int32_t size = starts[tables_.num_buckets];
    // Leaves in starts[b] where b ends.
    for (int64_t c = 0; c < num_classes_; ++c) {
      if (codes[c] >= 0) entries[starts[codes[c]]++] = static_cast<int32_t>(c);
    }
    std::memmove(starts + 1, starts, tables_.num_buckets * sizeof(int32_t));
    starts[0] = 0;
    std::fill(entries + size, entries + num_classes_, -1);
    moved_[t] = size - (is_corrupt_[t] ? 0 : stay_[t]);
  }

  const LayerWeights& weights_;
  const RowTimes& times_;
  const int64_t begin_, num_tables_, num_classes_;
  const HashTables& tables_;
  const Execution& execution_;
  const Hasher hasher_;
  const int32_t since_;
  const int64_t scratch_size_;
  float* const scratch_;       // by worker
  int32_t* const some_codes_;  // by worker, [tables, kRows]
  int32_t* const codes_;       // [tables, C]
  int64_t* const stay_;        // [tables]
  int64_t* const moved_;       // [tables]
  uint8_t* const is_corrupt_;  // [tables]
  std::atomic<int64_t> num_changed_{0}, bad_row_{-1}, bad_table_{-1};
  PreparedPhases phases_;
};

}  // namespace

void Touch(const int64_t* rows, int64_t n, int32_t now, const RowTimes& times) {
  for (int64_t i = 0; i < n; ++i) {
    if (rows[i] >= 0) times.touched_at[rows[i]] = now;
  }
}

HashFault UpdateTables(const HashFamily& family, const LayerWeights& weights, const RowTimes& times,
                       int64_t begin, int64_t end, int32_t now, const HashTables& tables,
                       const Execution& execution, int64_t* moved, const int64_t* touched,
                       int64_t num_touched) {
  Update update(family, weights, times, begin, end, now, tables, execution);
  Touch(touched, num_touched, now, times);
  return update.Run(now, moved);
}

}  // namespace tfx::core
