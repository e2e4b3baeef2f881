// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/dense_execution.h"
#include "core/factored_coordinates.h"
#include "core/factored_statistics.h"
#include "core/factored_update.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/factored_op.h"
#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// An op on a factored layer, whose variables it locks and checks against each other.
template <typename T>
class FactoredOp : public CpuOp {
 public:
  using CpuOp::CpuOp;

 protected:
  // Whether a call changes variables.
  virtual bool Changes() const = 0;

  virtual absl::Status Run(tf::OpKernelContext* context, LockedVariables& variables,
                           const core::DenseExecution<T>& execution) const = 0;

  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const final {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(LockFactored(context, tf::DataTypeToEnum<T>::value, Changes(), &variables));
    const core::FactoredState<T> state = FactoredStateOf<T>(variables);
    TF_RETURN_IF_ERROR(CheckSlots(state));
    if (IsSmall(context, state.width)) execution.num_workers = 1;
    return Run(context, variables, core::DenseExecution<T>(execution));
  }

  static absl::Status CheckSlotOfRow(const core::FactoredState<T>& state, int64_t id) {
    const int slot = state.row_slot[id];
    if (slot >= state.num_slots) return RowSlotError(state.num_slots, id, slot);
    return state.slot_rows[slot] > 0 ? absl::OkStatus() : EmptySlotError(id, slot);
  }

  // Returns an error if hidden and labels don't fit the state, or a number is not finite.
  static absl::Status CheckBatch(tf::OpKernelContext* context, const core::FactoredState<T>& state,
                                 const core::DenseExecution<T>& execution) {
    const tf::Tensor& labels = context->input(kFirstInput + 1);
    TF_RETURN_IF_ERROR(CheckFactoredBatch(context, state.width));
    TF_RETURN_IF_ERROR(CheckFinite<T>("hidden", context->input(kFirstInput), execution.kernels));
    TF_RETURN_IF_ERROR(CheckLabels(labels, state.num_classes, execution.rows));
    const auto ids = labels.flat<int64_t>();
    for (int64_t at = 0; at < ids.size(); ++at) {
      if (ids(at) >= 0) TF_RETURN_IF_ERROR(CheckSlotOfRow(state, ids(at)));
    }
    return absl::OkStatus();
  }

 private:
  // Below, a second thread costs more than it saves.
  static constexpr double kSmallFlop = 2e6;

  static bool IsSmall(tf::OpKernelContext* context, int64_t width) {
    double flop = 2.0 * width * width;
    if (context->num_inputs() > kFirstInput && context->input(kFirstInput).dims() > 0) {
      flop *= context->input(kFirstInput).dim_size(0);
    }
    return flop < kSmallFlop;
  }

  // Checks that do not read all rows.
  static absl::Status CheckSlots(const core::FactoredState<T>& state) {
    if (state.num_slots < 2 || state.num_slots > 256 || *state.current_slot < 0 ||
        *state.current_slot >= state.num_slots) {
      return CurrentSlotError(state.num_slots, *state.current_slot);
    }
    int64_t sum = 0;
    for (int64_t slot = 0; slot < state.num_slots; ++slot) {
      const int64_t rows = state.slot_rows[slot];
      if (rows < 0 || rows > state.num_classes) {
        return SlotRowsError(state.num_classes, slot, rows);
      }
      sum += rows;
    }
    if (sum == state.num_classes) return absl::OkStatus();
    return SumOfSlotRowsError(state.num_classes, sum);
  }
};

template <typename T>
class FactoredStatisticsOp : public FactoredOp<T> {
 public:
  explicit FactoredStatisticsOp(tf::OpKernelConstruction* context) : FactoredOp<T>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("update_rows", &update_rows_));
  }

 protected:
  bool Changes() const override { return update_rows_; }

  absl::Status Run(tf::OpKernelContext* context, LockedVariables& variables,
                   const core::DenseExecution<T>& execution) const override {
    TF_RETURN_IF_ERROR(this->CheckBatch(context, FactoredStateOf<T>(variables), execution));
    core::FactoredStatisticsOutputs<T> outputs;
    TF_RETURN_IF_ERROR(AllocateFactoredStatistics(context, &outputs));
    if (update_rows_) TF_RETURN_IF_ERROR(OwnFactoredRows(&variables));
    core::FactoredStatistics<T>(FactoredStateOf<T>(variables), FactoredBatchOf<T>(context),
                                update_rows_, execution, outputs);
    return absl::OkStatus();
  }

 private:
  bool update_rows_;
};

template <typename T>
class FactoredUpdateOp : public FactoredOp<T> {
 public:
  explicit FactoredUpdateOp(tf::OpKernelConstruction* context) : FactoredOp<T>(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
  }

 protected:
  bool Changes() const override { return attributes_.update; }

  absl::Status Run(tf::OpKernelContext* context, LockedVariables& variables,
                   const core::DenseExecution<T>& execution) const override {
    TF_RETURN_IF_ERROR(this->CheckBatch(context, FactoredStateOf<T>(variables), execution));
    TF_RETURN_IF_ERROR(CheckFactoredGradients(context));
    for (int i = 0; i < 5; ++i) {
      TF_RETURN_IF_ERROR(CheckFinite<T>(kFactoredGradients[i], context->input(kFirstInput + 2 + i),
                                        execution.kernels));
    }
    core::FactoredRates<T> rates;
    TF_RETURN_IF_ERROR(GetRates(context, &rates));
    tf::Tensor* hidden_gradient;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, context->input(kFirstInput).shape(), &hidden_gradient));
    if (attributes_.update) TF_RETURN_IF_ERROR(variables.OwnAll());
    const core::FactoredOutcome outcome = core::FactoredUpdate<T>(
        FactoredStateOf<T>(variables), FactoredBatchOf<T>(context), FactoredGradientsOf<T>(context),
        rates, attributes_.update, execution, hidden_gradient->flat<T>().data());
    if (!outcome.diverges) return absl::OkStatus();
    return DivergenceError(rates.learning_rate, rates.weight_decay, outcome.lambda_max);
  }

 private:
  absl::Status GetRates(tf::OpKernelContext* context, core::FactoredRates<T>* rates) const {
    const T eta = context->input(kLearningRateInput).scalar<T>()();
    const T decay = context->input(kWeightDecayInput).scalar<T>()();
    if (!(eta >= 0) || !std::isfinite(eta)) return LearningRateError(eta);
    if (!(decay >= 0) || !(eta * decay < 1)) return WeightDecayError(eta, decay);
    *rates = {eta, decay, static_cast<T>(attributes_.max_condition)};
    return absl::OkStatus();
  }

  FactoredUpdateAttributes attributes_;
};

template <typename T>
class FactoredSettleOp : public FactoredOp<T> {
 public:
  using FactoredOp<T>::FactoredOp;

 protected:
  bool Changes() const override { return true; }

  absl::Status Run(tf::OpKernelContext*, LockedVariables& variables,
                   const core::DenseExecution<T>& execution) const override {
    TF_RETURN_IF_ERROR(CheckAllRows(FactoredStateOf<T>(variables)));
    TF_RETURN_IF_ERROR(OwnFactoredRows(&variables));
    core::Settle<T>(FactoredStateOf<T>(variables), execution);
    return absl::OkStatus();
  }

 private:
  // Returns an error if row_slot or slot_rows is wrong anywhere.
  static absl::Status CheckAllRows(const core::FactoredState<T>& state) {
    std::vector<int64_t> rows(256, 0);
    for (int64_t id = 0; id < state.num_classes; ++id) ++rows[state.row_slot[id]];
    for (int64_t slot = state.num_slots; slot < 256; ++slot) {
      if (rows[slot] == 0) continue;
      return FactoredOp<T>::CheckSlotOfRow(
          state,
          std::find(state.row_slot, state.row_slot + state.num_classes, slot) - state.row_slot);
    }
    for (int64_t slot = 0; slot < state.num_slots; ++slot) {
      if (rows[slot] == state.slot_rows[slot]) continue;
      return InvalidArgument("slot_rows must be how many rows are in each slot; got ",
                             state.slot_rows[slot], " at position [", slot,
                             "], where row_slot has ", rows[slot]);
    }
    return absl::OkStatus();
  }
};

#define TFX_REGISTER(OP, T)                                                                  \
  REGISTER_KERNEL_BUILDER(Name("Tfx" #OP).Device(tf::DEVICE_CPU).TypeConstraint<T>("dtype"), \
                          OP##Op<T>)
TFX_REGISTER(FactoredStatistics, float);
TFX_REGISTER(FactoredStatistics, double);
TFX_REGISTER(FactoredUpdate, float);
TFX_REGISTER(FactoredUpdate, double);
TFX_REGISTER(FactoredSettle, float);
TFX_REGISTER(FactoredSettle, double);
#undef TFX_REGISTER

}  // namespace
}  // namespace tfx
