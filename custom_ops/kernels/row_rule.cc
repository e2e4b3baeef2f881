// SPDX-License-Identifier: Apache-2.0

#include "kernels/row_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "core/keep_random.h"
#include "kernels/invalid_argument.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// The places of a rule's numbers.
enum Number { kWeightDecay, kClipNorm, kFirst, kSecond, kThird };

// The places of its options, after the other numbers.
enum Option {
  kUnitRows,
  kRowWise,
  kBfloat16Moments,
  kRounding,
  kSeed,
  kStep,
  kVariable,
  kFirstClass,
  kClassStride,
  kNumOptions
};

constexpr double kSmallest = 1e-37;  // below, float32 has few digits or none

bool IsFraction(double x) { return x >= 0 && x < 1; }

bool IsWhole(double x, double at_least, double at_most) {
  return x >= at_least && x <= at_most && x == std::floor(x);
}

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
  const bool has_options = numbers.dims() == 1 && numbers.dim_size(0) == size + kNumOptions;
  if (numbers.dims() != 1 || (numbers.dim_size(0) != size && !has_options)) {
    return InvalidArgument("rule must have shape [", size, "] for ", method, ", or [",
                           size + kNumOptions, "]; got ", numbers.shape().DebugString());
  }
  const auto x = numbers.vec<double>();
  const double epsilon = is_sgd ? 1 : x(size - 1);
  const bool is_finite = std::isfinite(x(kWeightDecay)) && std::isfinite(epsilon);
  if (!is_finite || !(x(kWeightDecay) >= 0) || !(x(kClipNorm) >= kSmallest) ||
      !(epsilon >= kSmallest) ||
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
  const bool clips = x(kClipNorm) <= std::numeric_limits<float>::max();
  step_.clip_norm =
      clips ? static_cast<float>(x(kClipNorm)) : std::numeric_limits<float>::infinity();
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
  if (has_options) TF_RETURN_IF_ERROR(SetOptions(x.data() + size));
  if (!rate_is_on_host) {
    const char* refused = step_.unit_rows                                  ? "unit rows"
                          : step_.row_wise                                 ? "row-wise slots"
                          : step_.bfloat16_moments                         ? "moments in bfloat16"
                          : step_.rounding == core::Rounding::kStochastic  ? "stochastic rounding"
                          : step_.rounding == core::Rounding::kCompensated ? "compensation"
                                                                           : nullptr;
    if (refused == nullptr) return absl::OkStatus();
    return InvalidArgument("rule must have no ", refused, " on a GPU; got ",
                           numbers.SummarizeValue(size + kNumOptions));
  }
  const float eta = learning_rate.scalar<float>()();
  if (!std::isfinite(eta) || eta < 0 || !(eta * weight_decay_ < 1)) {
    return RateError(weight_decay_, eta);
  }
  step_.learning_rate = eta;
  step_.kept = static_cast<float>(1 - eta * weight_decay_);
  if (is_adam) correction_ = CorrectionFor(beta_1_, beta_2_);
  return absl::OkStatus();
}

absl::Status RowRule::SetOptions(const double* x) {
  constexpr double kMost = int64_t{1} << 53;  // whole numbers of float64
  const bool are_flags = IsWhole(x[kUnitRows], 0, 1) && IsWhole(x[kRowWise], 0, 1) &&
                         IsWhole(x[kBfloat16Moments], 0, 1) && IsWhole(x[kRounding], 0, 2);
  if (!are_flags || !IsWhole(x[kSeed], 0, kMost) || !IsWhole(x[kStep], 0, kMost) ||
      !IsWhole(x[kVariable], 0, kMost) || !IsWhole(x[kFirstClass], 0, kMost) ||
      !IsWhole(x[kClassStride], 1, kMost)) {
    return InvalidArgument(
        "options of rule must be three flags of 0 or 1, a rounding of 0, 1 or 2, ",
        "and a seed, a step, a variable, a first class and a stride of classes, ",
        "whole numbers; got ", x[kUnitRows], ", ", x[kRowWise], ", ", x[kBfloat16Moments], ", ",
        x[kRounding], ", ", x[kSeed], ", ", x[kStep], ", ", x[kVariable], ", ", x[kFirstClass],
        ", ", x[kClassStride]);
  }
  if (x[kRowWise] != 0 && step_.method != core::RowMethod::kAdagrad &&
      step_.method != core::RowMethod::kAdam) {
    return InvalidArgument("rule must not be row-wise for sgd, which has no squares; got ",
                           x[kRowWise]);
  }
  step_.unit_rows = x[kUnitRows] != 0;
  step_.row_wise = x[kRowWise] != 0;
  step_.bfloat16_moments = x[kBfloat16Moments] != 0;
  step_.rounding = static_cast<core::Rounding>(static_cast<int>(x[kRounding]));
  const auto seed = static_cast<uint64_t>(x[kSeed]), step = static_cast<uint64_t>(x[kStep]);
  key_ = core::Scrambled(core::Scrambled(seed) ^ step);
  variable_ = static_cast<int64_t>(x[kVariable]);
  shard_.first = static_cast<int64_t>(x[kFirstClass]);
  shard_.stride = static_cast<int64_t>(x[kClassStride]);
  return absl::OkStatus();
}

std::vector<RowRule::Slot> RowRule::Slots() const {
  std::vector<Slot> slots;
  switch (step_.method) {
    case core::RowMethod::kSgd:
      break;
    case core::RowMethod::kMomentum:
    case core::RowMethod::kNesterov:
      slots = {Slot::kMoment};
      break;
    case core::RowMethod::kAdagrad:
      slots = {step_.row_wise ? Slot::kOfRow : Slot::kSum};
      break;
    case core::RowMethod::kAdam:
      slots = {Slot::kMoment, step_.row_wise ? Slot::kOfRow : Slot::kMoment, Slot::kAge};
      break;
  }
  if (step_.rounding == core::Rounding::kCompensated) slots.push_back(Slot::kError);
  return slots;
}

absl::Status RowRule::CheckSlots(const LockedVariables& variables, int weight, int first_slot,
                                 int num_slots) const {
  if (num_slots != NumSlots()) {
    return InvalidArgument("slots of ", variables.name(weight), " must be ", NumSlots(),
                           " variables; got ", num_slots);
  }
  if (step_.rounding != core::Rounding::kNearest &&
      variables.tensor(weight)->dtype() != tf::DT_BFLOAT16) {
    return InvalidArgument(variables.name(weight), " must be bfloat16 where a rule rounds it by ",
                           "other than to the nearest number; got ",
                           tf::DataTypeString(variables.tensor(weight)->dtype()));
  }
  const std::vector<Slot> slots = Slots();
  const tf::TensorShape& shape = variables.tensor(weight)->shape();
  for (int slot = 0; slot < num_slots; ++slot) {
    const Slot kind = slots[slot];
    const bool is_narrow =
        kind == Slot::kError || (kind == Slot::kMoment && step_.bfloat16_moments);
    const bool is_of_row = kind == Slot::kOfRow || kind == Slot::kAge;
    const tf::Tensor& tensor = *variables.tensor(first_slot + slot);
    const tf::DataType dtype = kind == Slot::kAge ? tf::DT_UINT32
                               : is_narrow        ? tf::DT_BFLOAT16
                                                  : tf::DT_FLOAT;
    const tf::TensorShape wanted = is_of_row ? tf::TensorShape({shape.dim_size(0)}) : shape;
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
  rows.bfloat16_slots = step_.bfloat16_moments;
  rows.key = core::Scrambled(key_ ^ static_cast<uint64_t>(variable_ + weight));
  rows.shard = shard_;
  const std::vector<Slot> slots = Slots();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    void* const values = variables.tensor(first_slot + static_cast<int>(slot))->data();
    switch (slots[slot]) {
      case Slot::kOfRow:
        rows.of_rows = static_cast<float*>(values);
        break;
      case Slot::kAge:
        rows.ages = static_cast<uint32_t*>(values);
        break;
      case Slot::kError:
        rows.errors = static_cast<uint16_t*>(values);
        break;
      default:
        rows.slots[slot] = values;
    }
  }
  return rows;
}

}  // namespace tfx
