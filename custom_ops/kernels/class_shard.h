// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_KERNELS_CLASS_SHARD_H_
#define TFX_LARGEOUT_KERNELS_CLASS_SHARD_H_

#include <cstdint>

#include "core/class_shard.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Reads which classes of a layer the rows of a matrix are from three scalars, inputs `input` and
// the next two of an op: first_class, class_stride and num_classes. Refuses them if the last row
// would be no class of the layer.
absl::Status GetClassShard(tensorflow::OpKernelContext* context, int input, int64_t num_rows,
                           core::ClassShard* shard, int64_t* num_classes);

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_CLASS_SHARD_H_
