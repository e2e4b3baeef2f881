// SPDX-License-Identifier: Apache-2.0

#include "kernels/locked_variables.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/device_address.h"
#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "xla/stream_executor/stream.h"

namespace tfx {

namespace tf = tensorflow;

namespace {

// Copies memory of the op's device; on a GPU, in the order of the op's stream.
absl::Status CopyOnDevice(tf::OpKernelContext* context, const tf::Tensor& from, tf::Tensor* to) {
  const size_t bytes = from.TotalBytes();
  if (context->op_device_context() == nullptr) {  // a processor
    std::copy_n(static_cast<const char*>(from.data()), bytes, static_cast<char*>(to->data()));
    return absl::OkStatus();
  }
  if (bytes == 0) return absl::OkStatus();
  DeviceAddress target(to->data(), bytes);
  const DeviceAddress source(from.data(), bytes);
  return context->op_device_context()->stream()->MemcpyD2D(&target, source, bytes);
}

}  // namespace

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
  TF_RETURN_IF_ERROR(CopyOnDevice(context_, *shared, &copy));
  *shared = copy;
  return absl::OkStatus();
}

absl::Status LockedVariables::OwnAll() {
  for (int i = 0; i < size(); ++i) TF_RETURN_IF_ERROR(Own(i));
  return absl::OkStatus();
}

}  // namespace tfx
