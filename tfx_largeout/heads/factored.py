# SPDX-License-Identifier: Apache-2.0
"""FactoredHead: the exact SGD step of a dense layer, whatever the number of classes."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, full_name
from tfx_largeout.distribute.class_shard import mark_as_shard
from tfx_largeout.heads.factored_over_workers import (
    FactoredOverWorkers,
    LabelsOfParts,
    whole_batch_of_parts,
)
from tfx_largeout.heads.factored_weights import FactoredWeights
from tfx_largeout.heads.kept_passes import BackwardPass
from tfx_largeout.heads.row_updating import RowUpdatingHead
from tfx_largeout.heads.self_updating import after_forward_passes
from tfx_largeout.labels import Labels
from tfx_largeout.memory import StepMemory, StepSize, Weight
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.factored.factored_state import (
    NUM_SLOTS,
    FactoredState,
    all_in_first_slot,
    unit_transitions,
)
from tfx_largeout.ops.factored.factored_update import (
    MAX_CONDITION,
    factored_statistics,
    factored_update,
)
from tfx_largeout.ops.factored.factored_weights import moments_of_rows
from tfx_largeout.ops.factored.singular_value_stabilization import METHODS, stabilize
from tfx_largeout.ops.rows.row_blocks import (
    bytes_of_blocks,
    initial_values,
    initialize_by_blocks,
)
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.optimizers import RowSGD
from tfx_largeout.statistics import ExactStatistics, SphericalStatistics, without_gradient

_MOST_DRIFT = 0.01  # for weights from outside; more than 1% would be a defect
_CHECK_EVERY = 100  # steps between two checks of the singular values, as in the paper


@keras.saving.register_keras_serializable(package="tfx_largeout")
class FactoredHead(RowUpdatingHead, FactoredWeights):
    """A dense layer o = W h + b whose exact SGD step costs O(D^2) per example, whatever C is.

    W is kept as W = V U + 1 w^T, V `[C, D]`, together with Q = W^T W, c = W^T 1 and U^-T. For a
    loss of the spherical family (a function of the target logits a, q = sum_c o_c^2 and s = sum_c
    o_c) a step of all C rows changes only U, w and the target rows of V:

        W <- (1 - eta lambda) W - eta dL/dW

    exactly the step of a dense layer trained with SGD: docs/papers/exact_gradient.md. The head
    takes the steps itself; the model's optimizer trains the hidden layers.

    Cost: a training step O(B D^2 + B K D) and at most O(min(B, D)^3) time. Memory: V, a byte per
    class, and 12 D^2 numbers. Evaluation O(B C D), but the loss costs no more than a training step.

    Args:
        num_classes: The number of classes C, at least 2.
        optimizer: A `RowSGD` for this head alone, without momentum or `row_clip_norm`: the only
            rule that works on V and U. It holds eta, lambda (`weight_decay`, which multiplies all
            of W and b by 1 - eta lambda) and the count of steps; the rate follows the rate of the
            model's optimizer: see `model_rate`. A number or a schedule means `RowSGD` with this
            rate.
        use_bias: Whether there is a bias b `[C]`: h gets a constant 1 as its last column. Default
            False.
        kernel_initializer, bias_initializer: As `DenseHead`.
        stabilization: What keeps U well conditioned. `"lazy"` (default): U is reset to the
            identity, and each row of V is adapted when it is next used. `"svd"` and
            `"power_iteration"`: the paper's methods, every 100 steps, O(C D) for each singular
            value that is moved; `"none"`: nothing, for experiments.
        **kwargs: `model_rate`, `device`, `name`, `dtype`, `trainable`, as `SelfUpdatingHead`. The
            state is float32 whatever the policy, or float64 with the policy `"float64"`.

    Raises:
        TypeError: `optimizer` is not a `RowSGD`; as `RowUpdatingHead`.
        ValueError: An argument is out of range; as `RowUpdatingHead`.
        tf.errors.InvalidArgumentError: In a training step: h or a gradient is not finite, or the
            step would diverge in a dense layer, too, because 2 eta lambda_max of H^T diag(dL/dq) H
            is above 2 - eta lambda. Nothing is changed then.

    References:
        Vincent, de Brébisson, Bouthillier 2015, arXiv 1412.7091.
    """

    gives: ClassVar[tuple[type, ...]] = (SphericalStatistics,)
    spreads_classes: ClassVar[bool] = True
    short_weights: ClassVar[bool] = False

    def __init__(
        self,
        num_classes: int,
        optimizer: Any,
        use_bias: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        stabilization: str = "lazy",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_classes,
            _plain_sgd(optimizer),
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            **kwargs,
        )
        self.stabilization = choice_argument(
            "stabilization", stabilization, ("lazy", *METHODS, "none")
        )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.build_optimizer([])  # no slots
        self.rows = ClassRows(self.workers, self.num_classes, self.name)
        size = self.width + 1 if self.use_bias else self.width
        self.state_dtype = self.statistics_dtype
        matrix, vector, num_rows = (size, size), (size,), self.rows.num_rows
        add = functools.partial(self.add_state, dtype=self.state_dtype)
        # Initialized in this order: the Gram matrix and the row sum are computed from v, in one
        # pass.
        v = add("v", (num_rows, size), self._initial_v)
        moments = functools.cache(lambda: [*map(self._add_up, moments_of_rows(bare_variable(v)))])
        unit, slots = keras.initializers.Identity(), all_in_first_slot(self.num_classes)
        self.state = FactoredState(
            v=v,
            u=add("u", matrix, unit),
            u_inverse_transpose=add("u_inverse_transpose", matrix, unit),
            gram=add("gram", matrix, lambda _, dtype: tf.cast(moments()[0], dtype)),
            shift=add("shift", vector),
            row_sum=add("row_sum", vector, lambda _, dtype: tf.cast(moments()[1], dtype)),
            transitions=add("transitions", (NUM_SLOTS, *matrix), unit_transitions),
            row_slot=self.add_state("row_slot", (num_rows,), dtype="uint8"),
            slot_rows=self.add_state("slot_rows", (NUM_SLOTS,), lambda _, dtype: slots, "int64"),
            current_slot=self.add_state("current_slot", dtype="int64"),
        )
        for weight in (self.state.v, self.state.row_slot):
            mark_as_shard(weight, self.rows.shard)
        over_workers = FactoredOverWorkers(self.rows, self.state, self.name)
        self.over_workers = self.workers.pick(None, over_workers)
        # Functions that assign all weights (`set_weights`, `load_weights`) assign this one last.
        self._assign_current_slot = self.state.current_slot.assign
        self.state.current_slot.assign = self._assign_last

    def weights_of(self, width: int, workers: int = 1) -> list[Weight]:
        rows, size = -(-self.num_classes // workers), width + 1 if self.use_bias else width
        dtype = self.statistics_dtype
        matrices, vectors = Weight((3 + NUM_SLOTS, size, size), dtype), Weight((2, size), dtype)
        slots = [Weight((rows,), "uint8"), Weight((NUM_SLOTS,), "int64")]
        return [Weight((rows, size), dtype), matrices, vectors, *slots]

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """As `Head`: some matrices `[N, D]`, and some of min(N, D)^2 numbers."""
        v, matrices, *_ = self.weights_of(width, workers)
        size, examples = v.shape[1], step.examples
        return StepMemory(
            activations=24 * examples * size,
            workspace=4 * (8 * examples * size + 6 * min(examples, size) ** 2),
            evaluation=4 * examples * (2 * size + 512),
            building=bytes_of_blocks(v) + matrices.num_bytes,
        )

    def forward(
        self, kind: type, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        state_input = self._state_input(hidden)
        if self.over_workers is None:
            statistics = factored_statistics(self.state, state_input, labels.ids)
            values, residuals = statistics[:3], statistics[3:]
        else:
            values, residuals = self.over_workers.statistics(state_input, labels)
        return values, (*residuals, tf.identity(self.step_number))

    def backward(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
        update: bool,
    ) -> tf.Tensor:
        state_input = self._state_input(hidden)
        max_condition = MAX_CONDITION if self.stabilization == "lazy" else None
        if self.over_workers is None:
            gram_hidden, u_hidden = self._present(state_input, *residuals)
            hidden_gradient = factored_update(
                self.state,
                state_input,
                labels.ids,
                gram_hidden,
                u_hidden,
                gradients,
                tf.cast(self.present_rate, self.state_dtype),
                self.optimizer.row_weight_decay,
                update=update,
                max_condition=max_condition,
            )
        else:
            hidden_gradient = self.over_workers.backward(
                state_input,
                labels,
                residuals[:-1],
                self._is_present(residuals[-1]),
                gradients,
                (self.present_rate, self.optimizer.row_weight_decay, max_condition)
                if update
                else None,
            )
        return tf.cast(hidden_gradient[:, : self.width], hidden.dtype)

    def pack(self, gone: BackwardPass) -> tuple[tf.Tensor, ...]:
        self.workers.refuse_several(
            f"{full_name(self)} must be called once, and trained without "
            "gradient_accumulation_steps, where its classes are spread over workers; got several "
            "gradients for one step",
            NotImplementedError,
        )
        *statistics, _ = gone.residuals
        state_input = self._state_input(gone.hidden)
        return state_input, gone.labels.ids, *statistics, *gone.gradients

    def unpack(self, parts: Sequence[tf.Tensor]) -> BackwardPass:
        hidden, label_ids, gram_hidden, u_hidden, *gradients = parts
        state_width = self.state.u.shape[0]
        statistics = (tf.ensure_shape(x, [None, state_width]) for x in (gram_hidden, u_hidden))
        residuals = (*statistics, tf.identity(self.step_number))
        return BackwardPass(hidden, Labels(label_ids), residuals, tuple(gradients))

    def after_update(self, labels: Labels, residuals: Any) -> None:
        over_workers, moves = self.over_workers, self.stabilization in METHODS
        if over_workers is None and not moves:
            return

        def run() -> tf.Tensor:
            if over_workers is not None:
                over_workers.check_alike()
            if moves:
                stabilize(self.state, self.stabilization, self.num_classes)
            return tf.constant(0)

        due = tf.equal(self.step_number % _CHECK_EVERY, 0)
        tf.cond(due, run, lambda: tf.constant(0))

    def as_statistics(
        self,
        kind: type,
        labels: Labels,
        values: tuple[tf.Tensor, ...],
        residuals: Any,
        anchor: tf.Tensor,
    ) -> SphericalStatistics:
        targets, squares, total = values
        return SphericalStatistics(labels, targets, squares, total, self.num_classes)

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind is ExactStatistics:
            return self._exact_statistics(hidden, labels)
        if self.over_workers is not None and not isinstance(labels, LabelsOfParts):
            hidden, labels = self.over_workers.of_global_batch(hidden, labels)
        if kind is SphericalStatistics and not training:
            values = self._values(hidden, labels)
            return without_gradient(SphericalStatistics(labels, *values, self.num_classes))
        return super().statistics(kind, hidden, labels, training)

    def mean_logit(self, hidden: tf.Tensor) -> tf.Tensor:
        """As `Head`. Cost: O(N D^2)."""
        if self.over_workers is not None:
            row_sum = self.state.row_sum.value
            return tf.linalg.matvec(self._state_input(hidden), row_sum) / self.num_classes
        no_labels = Labels(tf.zeros([tf.shape(hidden)[0], 0], tf.int64))
        return self._values(hidden, no_labels)[2] / self.num_classes

    def whole_batch(
        self, output: Any, y_true: Any, sample_weight: Any, mask: Any, filtered: bool
    ) -> Any:
        """As `Head`; examples are not sent."""
        return whole_batch_of_parts(output, y_true, sample_weight, mask, filtered)

    def look_up(self, ids: tf.Tensor, dtype: str, training: bool) -> tf.Tensor:
        """Returns rows of W, `[n, D]` in a dtype; their gradient enters the head's next step.

        A loss whose gradient with respect to o is 1 at the label i of an example has dL/dW[i] = h.
        So the gradient of a row is passed as the h of a separate example, without a bias.

        Args:
            ids: `[n]` int64, in [0, C).
            dtype: The dtype of the rows.
            training: Whether a step is to follow, if the head is trainable.
        """
        rows = tf.cast(tf.stop_gradient(self.rows_of_w(ids)), dtype)
        if not training or not self.trainable:
            return rows
        self.step_context.call(rows)
        forward = self.step_context.forward()

        @tf.custom_gradient
        def run(rows: tf.Tensor, anchor: tf.Tensor, factor: tf.Tensor) -> Any:
            def backward_pass(of_rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
                gone = self._pass_of_lookups(ids, of_rows)
                of_anchor = tf.zeros_like(anchor)
                with after_forward_passes():
                    _, *others = self.step_context.backward(
                        forward, gone, of_anchor, look=lambda: tf.constant(0.0)
                    )
                return tf.zeros_like(rows), *others

            return tf.identity(rows), backward_pass

        anchor = tf.convert_to_tensor(self.gradient_anchor)
        return run(rows, anchor, tf.convert_to_tensor(self.gradient_factor))

    def _pass_of_lookups(self, ids: tf.Tensor, of_rows: tf.Tensor) -> BackwardPass:
        is_finite = tf.reduce_all(tf.math.is_finite(of_rows))
        hidden = tf.cast(tf.where(is_finite, of_rows, tf.zeros_like(of_rows)), self.state_dtype)
        hidden = tf.pad(hidden, [[0, 0], [0, self.state.width - self.width]])
        gram_hidden = tf.matmul(hidden, self.state.gram.value)
        u_hidden = tf.matmul(hidden, self.state.u.value, transpose_b=True)
        nan = tf.constant(float("nan"), self.state_dtype)
        none = tf.zeros_like(hidden[:, 0])
        of_targets = tf.where(is_finite, tf.ones_like(none), nan)[:, tf.newaxis]
        residuals = (gram_hidden, u_hidden, tf.identity(self.step_number))
        return BackwardPass(hidden, Labels(ids[:, tf.newaxis]), residuals, (of_targets, none, none))

    def _initial_v(self, shape: tuple[int, int], dtype: Any) -> tf.Tensor:
        bias, kernel_shape = None, (self.num_classes, self.width)
        if self.use_bias:
            bias = initial_values(
                self.bias_initializer, kernel_shape[:1], dtype, "bias_initializer"
            )
        return initialize_by_blocks(
            self.kernel_initializer, kernel_shape, dtype, bias, self.rows.shard
        )

    def _values(self, hidden: tf.Tensor, labels: Labels) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns a, q and s; changes nothing."""
        state_input = self._state_input(hidden)
        if self.over_workers is not None:
            return self.over_workers.statistics(state_input, labels)[0]
        return factored_statistics(self.state, state_input, labels.ids, update_rows=False)[:3]

    def _present(
        self, inputs: tf.Tensor, gram_hidden: tf.Tensor, u_hidden: tf.Tensor, version: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns H Q and H U^T for the present state.

        They are reused from the forward pass, unless the head has taken a step since.
        """
        return tf.cond(
            self._is_present(version),
            lambda: (gram_hidden, u_hidden),
            lambda: (
                tf.matmul(inputs, self.state.gram.value),
                tf.matmul(inputs, self.state.u.value, transpose_b=True),
            ),
        )

    def _is_present(self, version: tf.Tensor) -> tf.Tensor:
        """Returns whether the count of steps is still the given one."""
        return tf.equal(version, self.step_number)

    def _assign_last(self, value: Any) -> Any:
        """Assigns the last part; raises ValueError if the parts of the state don't fit."""
        result = self._assign_current_slot(value)
        if self.over_workers is not None:
            return result  # other workers may be assigning nothing, and the drift covers all rows
        drift = self.drift()
        if not max(drift) <= _MOST_DRIFT:
            raise ValueError(
                f"the weights of {full_name(self)} must fit each other; got weights that do not "
                f"(relative differences of {drift.gram:.2g} between Q and W^T W, "
                f"{drift.inverse:.2g} between U^-T and the inverse of U), as an average of two "
                "states, weight by weight, does. They have been assigned. To average heads, use "
                "head.set_dense_weights with the mean of what materialize() returns."
            )
        return result


def _plain_sgd(optimizer: Any) -> RowSGD:
    """Returns the optimizer of a factored head; raises if V and U can't take its step."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    if isinstance(optimizer, (numbers.Real, schedule)) and not isinstance(optimizer, bool):
        return RowSGD(optimizer)
    if not isinstance(optimizer, RowSGD) or optimizer.momentum or optimizer.row_clip_norm:
        raise TypeError(
            "optimizer of a FactoredHead must be a RowSGD without momentum and row_clip_norm, or "
            f"a number above 0 for its rate; got {optimizer!r}"
        )
    if optimizer.keeps_small_steps:
        raise ValueError(
            "optimizer of a FactoredHead must be without stochastic_rounding and compensation, as "
            f"the head has no weights in bfloat16; got {optimizer!r}"
        )
    return optimizer
