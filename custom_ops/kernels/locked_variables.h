// SPDX-License-Identifier: Apache-2.0
//
// Variables that an op reads or changes in place, locked while it runs. On a GPU this is until its
// work is enqueued: work of other ops on the variables comes later on the same stream.

#ifndef TFX_LARGEOUT_KERNELS_LOCKED_VARIABLES_H_
#define TFX_LARGEOUT_KERNELS_LOCKED_VARIABLES_H_

#include <optional>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfx {

class LockedVariables {
 public:
  enum class Mode { kShared, kExclusive };

  // Looks up the variables of the handles in inputs `first_input`, first_input + 1, ... of the op,
  // one per name, and locks them until destruction. Returns an error if one is not initialised, or
  // given twice. All ops lock in the order of addresses, to avoid deadlocks.
  absl::Status Lock(tensorflow::OpKernelContext* context, std::vector<std::string> names, Mode mode,
                    int first_input = 0);

  int size() const { return static_cast<int>(names_.size()); }
  const std::string& name(int index) const { return names_[index]; }
  tensorflow::Tensor* tensor(int index) const { return variables_[index]->tensor(); }

  // Gives a variable a separate buffer if it shares one with a tensor that was read from it. On a
  // GPU it is copied on the op's stream, before the work of the op.
  // REQUIRES: locked with kExclusive.
  absl::Status Own(int index);
  absl::Status OwnAll();

 private:
  absl::Status LookUp(int input, int index);

  tensorflow::OpKernelContext* context_ = nullptr;
  std::vector<std::string> names_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  // Unlocked before the variables are released.
  std::vector<std::optional<tensorflow::mutex_lock>> locks_;
  std::vector<std::optional<tensorflow::tf_shared_lock>> shared_locks_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_LOCKED_VARIABLES_H_
