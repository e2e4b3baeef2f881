// SPDX-License-Identifier: Apache-2.0

#include "kernels/check_ids.h"

#include <string>

#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

absl::Status CheckIds(const char* name, const tf::Tensor& ids, int64_t lowest, int64_t end,
                      const core::RowKernels& kernels) {
  const int64_t* flat = ids.flat<int64_t>().data();
  const int64_t at = kernels.find_outside(flat, ids.NumElements(), lowest, end);
  if (at == ids.NumElements()) return absl::OkStatus();
  const int64_t columns = ids.dims() == 2 ? ids.dim_size(1) : ids.NumElements();
  const std::string row = ids.dims() == 2 ? absl::StrCat(at / columns, ", ") : "";
  return InvalidArgument(name, " must be class ids in [", lowest, ", ", end, "); got ", flat[at],
                         " at position [", row, at % columns, "]");
}

}  // namespace tfx
