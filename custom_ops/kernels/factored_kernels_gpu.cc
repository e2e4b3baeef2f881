// SPDX-License-Identifier: Apache-2.0
//
// The ops of a step of a factored layer on a GPU. The host waits once in an update, for the verdict
// of the step.

#include <cstdint>

#include "core/gpu/factored_statistics.h"
#include "core/gpu/factored_update.h"
#include "kernels/check_values.h"
#include "kernels/factored_op.h"
#include "kernels/gpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;
using core::gpu::FactoredRefusal;
using core::gpu::FactoredVerdict;

// Looks at no number on the device.
absl::Status LockFactoredOnGpu(tf::OpKernelContext* context, tf::DataType dtype, bool changes,
                               LockedVariables* variables) {
  TF_RETURN_IF_ERROR(LockFactored(context, dtype, changes, variables));
  const int64_t num_slots = variables->tensor(kSlotRows)->dim_size(0);
  if (num_slots < 2 || num_slots > 256) {
    return InvalidArgument("slot_rows must have 2 to 256 slots; got ", num_slots);
  }
  return CheckFactoredBatch(context, variables->tensor(kV)->dim_size(1));
}

template <typename T>
class FactoredStatisticsGpuOp : public GpuOp {
 public:
  explicit FactoredStatisticsGpuOp(tf::OpKernelConstruction* context) : GpuOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("update_rows", &update_rows_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context) const override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(
        LockFactoredOnGpu(context, tf::DataTypeToEnum<T>::value, update_rows_, &variables));
    core::FactoredStatisticsOutputs<T> outputs;
    TF_RETURN_IF_ERROR(AllocateFactoredStatistics(context, &outputs));
    if (update_rows_) TF_RETURN_IF_ERROR(OwnFactoredRows(&variables));
    const core::FactoredState<T> state = FactoredStateOf<T>(variables);
    const core::FactoredBatch<T> batch = FactoredBatchOf<T>(context);
    tf::Tensor scratch;
    TF_RETURN_IF_ERROR(AllocateScratch(
        context, core::gpu::FactoredStatisticsScratchBytes(state, batch), &scratch));
    return StatusOf(core::gpu::FactoredStatistics(StreamOf(context), state, batch, update_rows_,
                                                  scratch.data(), outputs));
  }

 private:
  bool update_rows_;
};

template <typename T>
class FactoredUpdateGpuOp : public GpuOp {
 public:
  explicit FactoredUpdateGpuOp(tf::OpKernelConstruction* context) : GpuOp(context) {
    OP_REQUIRES_OK(context, attributes_.Read(context));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context) const override {
    const bool update = attributes_.update;
    LockedVariables variables;
    TF_RETURN_IF_ERROR(
        LockFactoredOnGpu(context, tf::DataTypeToEnum<T>::value, update, &variables));
    TF_RETURN_IF_ERROR(CheckFactoredGradients(context));
    Arguments step = {FactoredStateOf<T>(variables),
                      FactoredBatchOf<T>(context),
                      FactoredGradientsOf<T>(context),
                      context->input(kLearningRateInput).flat<T>().data(),
                      context->input(kWeightDecayInput).flat<T>().data(),
                      attributes_.max_condition};
    tf::Tensor scratch, *hidden_gradient;
    TF_RETURN_IF_ERROR(
        AllocateScratch(context, core::gpu::FactoredUpdateScratchBytes(step), &scratch));
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, context->input(kFirstInput).shape(), &hidden_gradient));
    TF_RETURN_IF_ERROR(StatusOf(core::gpu::BeginFactoredUpdate(
        StreamOf(context), step, update, scratch.data(), hidden_gradient->flat<T>().data())));
    FactoredVerdict verdict;
    TF_RETURN_IF_ERROR(CopyToHost(context, core::gpu::VerdictIn(scratch.data()), &verdict));
    TF_RETURN_IF_ERROR(CheckVerdict(context, step, verdict));
    if (!update) return absl::OkStatus();
    TF_RETURN_IF_ERROR(variables.OwnAll());
    step.state = FactoredStateOf<T>(variables);
    return StatusOf(core::gpu::EndFactoredUpdate(StreamOf(context), step, verdict, scratch.data()));
  }

 private:
  using Arguments = core::gpu::FactoredStepArguments<T>;

  static absl::Status CheckVerdict(tf::OpKernelContext* context, const Arguments& step,
                                   const FactoredVerdict& verdict) {
    const FactoredRefusal refusal = verdict.Refusal();
    if (refusal == FactoredRefusal::kNone) {
      const core::FactoredOutcome outcome = core::gpu::OutcomeOf(verdict);
      if (!outcome.diverges) return absl::OkStatus();
      return DivergenceError(verdict.learning_rate, verdict.weight_decay, outcome.lambda_max);
    }
    if (refusal == FactoredRefusal::kLearningRate) return LearningRateError(verdict.learning_rate);
    if (refusal == FactoredRefusal::kWeightDecay) {
      return WeightDecayError(verdict.learning_rate, verdict.weight_decay);
    }
    if (refusal <= FactoredRefusal::kSumOfSlotRows) {
      return SlotError(context, step.state, refusal, verdict.Position());
    }
    if (refusal >= FactoredRefusal::kLabels && refusal <= FactoredRefusal::kRowsOfSlot) {
      return LabelError(context, step.state, refusal, verdict.Position());
    }
    return NumberError(context, refusal, verdict.Position());
  }

  static absl::Status SlotError(tf::OpKernelContext* context, const core::FactoredState<T>& state,
                                FactoredRefusal refusal, int64_t slot) {
    int64_t got = 0;
    if (refusal == FactoredRefusal::kCurrentSlot) {
      TF_RETURN_IF_ERROR(CopyToHost(context, state.current_slot, &got));
      return CurrentSlotError(state.num_slots, got);
    }
    if (refusal == FactoredRefusal::kSlotRows) {
      TF_RETURN_IF_ERROR(CopyToHost(context, state.slot_rows + slot, &got));
      return SlotRowsError(state.num_classes, slot, got);
    }
    int64_t sum = 0;
    for (int64_t i = 0; i < state.num_slots; ++i, sum += got) {
      TF_RETURN_IF_ERROR(CopyToHost(context, state.slot_rows + i, &got));
    }
    return SumOfSlotRowsError(state.num_classes, sum);
  }

  static absl::Status LabelError(tf::OpKernelContext* context, const core::FactoredState<T>& state,
                                 FactoredRefusal refusal, int64_t place) {
    const tf::Tensor& labels = context->input(kFirstInput + 1);
    int64_t label;
    TF_RETURN_IF_ERROR(CopyToHost(context, labels.flat<int64_t>().data() + place, &label));
    if (refusal == FactoredRefusal::kLabels) {
      return LabelRangeError(labels.shape(), state.num_classes, place, label);
    }
    uint8_t slot;
    TF_RETURN_IF_ERROR(CopyToHost(context, state.row_slot + label, &slot));
    if (refusal == FactoredRefusal::kRowSlot) return RowSlotError(state.num_slots, label, slot);
    return EmptySlotError(label, slot);
  }

  static absl::Status NumberError(tf::OpKernelContext* context, FactoredRefusal refusal,
                                  int64_t position) {
    const int gradient = static_cast<int>(refusal) - static_cast<int>(FactoredRefusal::kGramHidden);
    const bool is_hidden = refusal == FactoredRefusal::kHidden;
    const tf::Tensor& numbers = context->input(kFirstInput + (is_hidden ? 0 : 2 + gradient));
    T number;
    TF_RETURN_IF_ERROR(CopyToHost(context, numbers.flat<T>().data() + position, &number));
    return FiniteError(is_hidden ? "hidden" : kFactoredGradients[gradient], numbers.shape(),
                       position, number);
  }

  FactoredUpdateAttributes attributes_;
};

#define TFX_REGISTER(OP, T)                                      \
  REGISTER_KERNEL_BUILDER(Name("Tfx" #OP)                        \
                              .Device(tf::DEVICE_GPU)            \
                              .TypeConstraint<T>("dtype")        \
                              .HostMemory("v")                   \
                              .HostMemory("u")                   \
                              .HostMemory("u_inverse_transpose") \
                              .HostMemory("gram")                \
                              .HostMemory("shift")               \
                              .HostMemory("row_sum")             \
                              .HostMemory("transitions")         \
                              .HostMemory("row_slot")            \
                              .HostMemory("slot_rows")           \
                              .HostMemory("current_slot"),       \
                          OP##GpuOp<T>)

TFX_REGISTER(FactoredStatistics, float);
TFX_REGISTER(FactoredStatistics, double);
TFX_REGISTER(FactoredUpdate, float);
TFX_REGISTER(FactoredUpdate, double);
#undef TFX_REGISTER

}  // namespace
}  // namespace tfx
