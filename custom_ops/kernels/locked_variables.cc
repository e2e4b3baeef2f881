// SPDX-License-Identifier: Apache-2.0

#include "kernels/locked_variables.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tfx {

namespace tf = tensorflow;

absl::Status LockedVariables::LookUp(int input, int index) {
  const tf::TensorShape& shape = context_->input(input).shape();
  if (shape.num_elements() != 1) {
    return InvalidArgument(names_[index], " must be the handle of one variable; got shape ",
                           shape.DebugString());
  }
  tf::ResourceHandle handle;
  TF_RETURN_IF_ERROR(tf::HandleFromInput(context_, input, &handle));
  const absl::Status status = tf::LookupResource(context_, handle, &variables_[index]);
  if (status.ok()) return status;
  return InvalidArgument(names_[index], " must be the handle of a variable that has a value; got ",
                         status.message());
}

absl::Status LockedVariables::Lock(tf::OpKernelContext* context, std::vector<std::string> names,
                                   Mode mode, int first_input) {
  context_ = context;
  names_ = std::move(names);
  variables_.resize(names_.size());
  for (int i = 0; i < size(); ++i) {
    TF_RETURN_IF_ERROR(LookUp(first_input + i, i));
    for (int j = 0; j < i; ++j) {
      if (variables_[i].get() == variables_[j].get()) {
        return InvalidArgument(names_[i], " must be a variable of its own; got that of ",
                               names_[j]);
      }
    }
  }
  std::vector<tf::Var*> ordered;
  for (const auto& variable : variables_) ordered.push_back(variable.get());
  std::sort(ordered.begin(), ordered.end(), std::less<tf::Var*>());
  locks_ = std::vector<std::optional<tf::mutex_lock>>(size());
  shared_locks_ = std::vector<std::optional<tf::tf_shared_lock>>(size());
  for (int i = 0; i < size(); ++i) {
    if (mode == Mode::kExclusive) {
      locks_[i].emplace(*ordered[i]->mu());
    } else {
      shared_locks_[i].emplace(*ordered[i]->mu());
    }
  }
  for (int i = 0; i < size(); ++i) {
    if (variables_[i]->is_initialized) continue;
    return InvalidArgument(names_[i], " must be initialised; got one without a value");
  }
  return absl::OkStatus();
}

absl::Status LockedVariables::Own(int index) {
  tf::Tensor* shared = tensor(index);
  if (shared->RefCountIsOne()) return absl::OkStatus();
  tf::Tensor copy;
  TF_RETURN_IF_ERROR(context_->allocate_temp(shared->dtype(), shared->shape(), &copy));
  std::copy_n(static_cast<const char*>(shared->data()), shared->TotalBytes(),
              static_cast<char*>(copy.data()));
  *shared = copy;
  return absl::OkStatus();
}

}  // namespace tfx
