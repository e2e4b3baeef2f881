// SPDX-License-Identifier: Apache-2.0

#include "kernels/class_shard.h"

#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

absl::Status GetClassShard(tf::OpKernelContext* context, int input, int64_t num_rows,
                           core::ClassShard* shard, int64_t* num_classes) {
  constexpr const char* kNames[] = {"first_class", "class_stride", "num_classes"};
  int64_t numbers[3];
  for (int i = 0; i < 3; ++i) {
    const tf::Tensor& tensor = context->input(input + i);
    if (tensor.dims() != 0) {
      return InvalidArgument(kNames[i], " must be a scalar; got shape ",
                             tensor.shape().DebugString());
    }
    numbers[i] = tensor.scalar<int64_t>()();
  }
  *shard = {numbers[0], numbers[1], num_rows};
  *num_classes = numbers[2];
  if (shard->first >= 0 && shard->stride >= 1 && *num_classes >= 0 &&
      (num_rows == 0 || (shard->first < *num_classes &&
                         (*num_classes - 1 - shard->first) / shard->stride >= num_rows - 1))) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "first_class, class_stride and num_classes must be such that each row r is ",
      "the class first_class + class_stride r in [0, num_classes); got ", shard->first, ", ",
      shard->stride, " and ", *num_classes, " for ", num_rows, " rows");
}

}  // namespace tfx
