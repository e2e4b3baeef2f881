// SPDX-License-Identifier: Apache-2.0

#include "kernels/row_rule.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "kernels/invalid_argument.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// The places of a rule's numbers.
enum Number { kWeightDecay, kClipNorm, kFirst, kSecond, kThird };

constexpr double kSmallest = 1e-37;  // below, float32 has few digits or none

bool IsFraction(double x) { return x >= 0 && x < 1; }

// The table for these numbers, which ops share from step to step.
std::shared_ptr<const core::AdamCorrection> CorrectionFor(double beta_1, double beta_2) {
  constexpr size_t kMostKept = 8;
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const core::AdamCorrection>>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = std::find_if(kept->begin(), kept->end(), [&](const auto& correction) {
    return correction->IsFor(beta_1, beta_2);
  });
  if (found != kept->end()) return *found;
  kept->insert(kept->begin(), std::make_shared<core::AdamCorrection>(beta_1, beta_2));
  if (kept->size() > kMostKept) kept->pop_back();
  return kept->front();
}

}  // namespace

absl::Status RateError(double weight_decay, float learning_rate) {
  return InvalidArgument("learning_rate must be finite, at least 0, and below 1 / weight_decay, ",
                         "which is ", weight_decay, "; got ", learning_rate);
}

absl::Status RowRule::Set(const std::string& method, const tf::Tensor& numbers,
                          const tf::Tensor& learning_rate, bool rate_is_on_host) {
  const bool is_sgd = method == "sgd", is_adam = method == "adam";
  const int64_t size = kFirst + (is_adam ? 3 : is_sgd ? 2 : 1);
  const bool unit_rows = numbers.dims() == 1 && numbers.dim_size(0) == size + 1;
  if (numbers.dims() != 1 || (numbers.dim_size(0) != size && !unit_rows)) {
    return InvalidArgument("rule must have shape [", size, "] for ", method, ", or [", size + 1,
                           "]; got ", numbers.shape().DebugString());
  }
  if (unit_rows && !rate_is_on_host) {
    return InvalidArgument("rule must not keep rows at norm 1 on a GPU; got ",
                           numbers.SummarizeValue(size + 1));
  }
  const auto x = numbers.vec<double>();
  const double epsilon = is_sgd ? 1 : x(size - 1);
  const bool is_finite = std::isfinite(x(kWeightDecay)) && std::isfinite(epsilon);
  if (!is_finite || !(x(kWeightDecay) >= 0) || !(x(kClipNorm) >= kSmallest) ||
      !(epsilon >= kSmallest) || (unit_rows && x(size) != 1) ||
      (is_sgd && !(IsFraction(x(kFirst)) && (x(kSecond) == 0 || x(kSecond) == 1))) ||
      (is_adam && !(IsFraction(x(kFirst)) && IsFraction(x(kSecond))))) {
    return InvalidArgument("rule must hold a finite weight_decay of at least 0, a clip_norm of at ",
                           "least 1e-37, and hyperparameters of ", method, " in range; got ",
                           numbers.SummarizeValue(size));
  }
  if (learning_rate.dims() != 0) {
    return InvalidArgument("learning_rate must be a scalar; got shape ",
                           learning_rate.shape().DebugString());
  }
  weight_decay_ = x(kWeightDecay);
  beta_1_ = is_adam ? x(kFirst) : 0;
  beta_2_ = is_adam ? x(kSecond) : 0;
  step_ = {};
  step_.unit_rows = unit_rows;
  step_.clip_norm = static_cast<float>(x(kClipNorm));
  step_.epsilon = static_cast<float>(epsilon);
  step_.method = is_adam           ? core::RowMethod::kAdam
                 : !is_sgd         ? core::RowMethod::kAdagrad
                 : x(kFirst) == 0  ? core::RowMethod::kSgd
                 : x(kSecond) == 0 ? core::RowMethod::kMomentum
                                   : core::RowMethod::kNesterov;
  if (is_sgd) step_.momentum = static_cast<float>(x(kFirst));
  if (is_adam) {
    step_.momentum = static_cast<float>(beta_1_);
    step_.rest_1 = static_cast<float>(1 - beta_1_);
    step_.beta_2 = static_cast<float>(beta_2_);
    step_.rest_2 = static_cast<float>(1 - beta_2_);
  }
  if (!rate_is_on_host) return absl::OkStatus();
  const float eta = learning_rate.scalar<float>()();
  if (!std::isfinite(eta) || eta < 0 || !(eta * weight_decay_ < 1)) {
    return RateError(weight_decay_, eta);
  }
  step_.learning_rate = eta;
  step_.kept = static_cast<float>(1 - eta * weight_decay_);
  if (is_adam) correction_ = CorrectionFor(beta_1_, beta_2_);
  return absl::OkStatus();
}

int RowRule::NumSlots() const {
  switch (step_.method) {
    case core::RowMethod::kSgd:
      return 0;
    case core::RowMethod::kAdam:
      return 3;
    default:
      return 1;
  }
}

absl::Status RowRule::CheckSlots(const LockedVariables& variables, int weight, int first_slot,
                                 int num_slots) const {
  if (num_slots != NumSlots()) {
    return InvalidArgument("slots of ", variables.name(weight), " must be ", NumSlots(),
                           " variables; got ", num_slots);
  }
  const tf::TensorShape& shape = variables.tensor(weight)->shape();
  for (int slot = 0; slot < num_slots; ++slot) {
    const bool is_age = slot == 2;
    const tf::Tensor& tensor = *variables.tensor(first_slot + slot);
    const tf::DataType dtype = is_age ? tf::DT_UINT32 : tf::DT_FLOAT;
    const tf::TensorShape wanted = is_age ? tf::TensorShape({shape.dim_size(0)}) : shape;
    if (tensor.dtype() != dtype || tensor.shape() != wanted) {
      return InvalidArgument(variables.name(first_slot + slot), " must be ",
                             tf::DataTypeString(dtype), " of shape ", wanted.DebugString(),
                             "; got ", tf::DataTypeString(tensor.dtype()), " of shape ",
                             tensor.shape().DebugString());
    }
  }
  return absl::OkStatus();
}

core::WeightRows RowRule::Rows(const LockedVariables& variables, int weight, int first_slot) const {
  const tf::Tensor& tensor = *variables.tensor(weight);
  core::WeightRows rows = {};
  rows.weights = tensor.data();
  rows.is_bfloat16 = tensor.dtype() == tf::DT_BFLOAT16;
  rows.width = tensor.NumElements() / std::max<int64_t>(tensor.dim_size(0), 1);
  for (int slot = 0; slot < NumSlots(); ++slot) {
    tf::Tensor* values = variables.tensor(first_slot + slot);
    if (slot == 2) {
      rows.ages = values->flat<uint32_t>().data();
    } else {
      rows.slots[slot] = values->flat<float>().data();
    }
  }
  return rows;
}

}  // namespace tfx
