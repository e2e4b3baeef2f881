// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_KERNELS_INVALID_ARGUMENT_H_
#define TFX_LARGEOUT_KERNELS_INVALID_ARGUMENT_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tfx {

// An error with the argument, the rule it breaks, and the value received.
template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_INVALID_ARGUMENT_H_
