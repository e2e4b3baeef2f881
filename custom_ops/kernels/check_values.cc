// SPDX-License-Identifier: Apache-2.0

#include "kernels/check_values.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "kernels/invalid_argument.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// The least result of find(begin, end) for ranges that make up [0, n): it is the end of a range
// where nothing is found.
template <typename Find>
int64_t FindFirst(int64_t n, const core::Execution& execution, const Find& find) {
  std::atomic<int64_t> first(n);
  const auto look = [&](int64_t begin, int64_t end) {
    const int64_t at = find(begin, end);
    int64_t known = first.load();
    while (at < end && at < known && !first.compare_exchange_weak(known, at)) {
    }
  };
  execution.parallel_for(n, look, 1);
  return first.load();
}

absl::Status RangeError(const char* name, const std::string& range, const tf::Tensor& ids,
                        int64_t at) {
  if (at == ids.NumElements()) return absl::OkStatus();
  return IdError(name, range, ids.shape(), at, ids.flat<int64_t>()(at));
}

std::string Position(const tf::TensorShape& shape, int64_t at) {
  std::string position = "]";
  for (int d = shape.dims() - 1; d >= 0; --d) {
    position = absl::StrCat(d == 0 ? "[" : ", ", at % shape.dim_size(d), position);
    at /= shape.dim_size(d);
  }
  return position;
}

}  // namespace

absl::Status IdError(const char* name, const std::string& range, const tf::TensorShape& shape,
                     int64_t at, int64_t id) {
  return InvalidArgument(name, " must be class ids in ", range, "; got ", id, " at position ",
                         Position(shape, at));
}

absl::Status FiniteError(const char* name, const tf::TensorShape& shape, int64_t at,
                         double number) {
  return InvalidArgument(name, " must be finite; got ", number, " at position ",
                         Position(shape, at));
}

absl::Status CheckIds(const char* name, const tf::Tensor& ids, int64_t lowest, int64_t end,
                      const core::Execution& execution) {
  const int64_t* flat = ids.flat<int64_t>().data();
  const auto find = [&](int64_t first, int64_t last) {
    return first + execution.rows.find_outside(flat + first, last - first, lowest, end);
  };
  return RangeError(name, absl::StrCat("[", lowest, ", ", end, ")"), ids,
                    FindFirst(ids.NumElements(), execution, find));
}

absl::Status LabelRangeError(const tf::TensorShape& shape, int64_t num_classes, int64_t at,
                             int64_t label) {
  return IdError("labels", absl::StrCat("[-1, num_classes), where num_classes is ", num_classes),
                 shape, at, label);
}

absl::Status CheckLabels(const tf::Tensor& labels, int64_t num_classes,
                         const core::RowKernels& kernels) {
  const int64_t at =
      kernels.find_outside(labels.flat<int64_t>().data(), labels.NumElements(), -1, num_classes);
  if (at == labels.NumElements()) return absl::OkStatus();
  return LabelRangeError(labels.shape(), num_classes, at, labels.flat<int64_t>()(at));
}

template <typename T>
absl::Status CheckFinite(const char* name, const tf::Tensor& values,
                         const core::DenseKernels<T>& kernels) {
  const T* x = values.flat<T>().data();
  const int64_t n = values.NumElements();
  if (kernels.all_finite(x, n)) return absl::OkStatus();
  const T* wrong = std::find_if(x, x + n, [](T value) { return !std::isfinite(value); });
  return FiniteError(name, values.shape(), wrong - x, *wrong);
}

template absl::Status CheckFinite<float>(const char* name, const tf::Tensor& values,
                                         const core::DenseKernels<float>& kernels);
template absl::Status CheckFinite<double>(const char* name, const tf::Tensor& values,
                                          const core::DenseKernels<double>& kernels);

absl::Status CheckGradient(const char* name, const tf::Tensor& gradient, const tf::Tensor& ids,
                           const core::Execution& execution) {
  const float* g = gradient.flat<float>().data();
  const int64_t n = gradient.NumElements();
  const auto find = [&](int64_t begin, int64_t end) {
    return execution.dense.all_finite(g + begin, end - begin) ? end : begin;
  };
  const auto flat_ids = ids.flat<int64_t>();
  for (int64_t at = FindFirst(n, execution, find); at < n; ++at) {
    if (!std::isfinite(g[at]) && flat_ids(at % ids.NumElements()) >= 0) {
      return FiniteError(name, gradient.shape(), at, g[at]);
    }
  }
  return absl::OkStatus();
}

}  // namespace tfx
