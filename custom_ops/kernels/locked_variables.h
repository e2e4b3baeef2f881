// SPDX-License-Identifier: Apache-2.0
//
// Variables that an op reads or changes in place, locked as long as it runs. On a GPU this is until
// its work has begun: what other ops do to the variables comes behind on the same stream.

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

  // Looks up the variables that inputs `first_input`, first_input + 1, ... of the op are handles
  // of, one for each name, and locks them until destruction. Refuses one that is not initialised,
  // or given twice. All ops lock in the same order, that of the addresses, so that none waits for
  // another in a circle.
  absl::Status Lock(tensorflow::OpKernelContext* context, std::vector<std::string> names, Mode mode,
                    int first_input = 0);

  int size() const { return static_cast<int>(names_.size()); }
  const std::string& name(int index) const { return names_[index]; }
  tensorflow::Tensor* tensor(int index) const { return variables_[index]->tensor(); }

  // Gives a variable a buffer of its own if it shares one with a tensor that was read from it. On a
  // GPU it is copied on the op's stream, before what the op begins there.
  // REQUIRES: locked with kExclusive.
  absl::Status Own(int index);
  absl::Status OwnAll();

 private:
  absl::Status LookUp(int input, int index);

  tensorflow::OpKernelContext* context_ = nullptr;
  std::vector<std::string> names_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  // Unlocked before the variables go.
  std::vector<std::optional<tensorflow::mutex_lock>> locks_;
  std::vector<std::optional<tensorflow::tf_shared_lock>> shared_locks_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_LOCKED_VARIABLES_H_
