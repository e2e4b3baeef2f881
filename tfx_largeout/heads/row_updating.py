# SPDX-License-Identifier: Apache-2.0
"""RowUpdatingHead: the base of heads that update their rows with a row optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.arguments import full_name
from tfx_largeout.distribute.class_shard import mark_slots
from tfx_largeout.distribute.data_parallel import CLIPPING
from tfx_largeout.heads.replicated_rows import ReplicatedRows
from tfx_largeout.heads.self_updating import SelfUpdatingHead
from tfx_largeout.memory import Weight
from tfx_largeout.ops.candidates.candidate_gradients import candidate_gradients
from tfx_largeout.ops.candidates.candidate_update import candidate_update
from tfx_largeout.ops.candidates.row_gradients import RowGradients
from tfx_largeout.ops.exact.shared_gradient import CandidateGradients
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update import row_update
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.optimizers.optimizer_memory import OptimizerMemory
from tfx_largeout.optimizers.row_optimizer import RowOptimizer

# Options by which Keras changes gradients or weights outside of the step. Heads don't have them.
_OPTIONS_OF_KERAS = (
    *CLIPPING,
    "use_ema",
    "gradient_accumulation_steps",
    "loss_scale_factor",
)


class RowUpdatingHead(SelfUpdatingHead):
    """A self-updating head with a separate `RowOptimizer`.

    Args:
        num_classes: The number of classes C, at least 2.
        optimizer: A `RowOptimizer` for this head alone. `head.optimizer` has the head's learning
            rate (see `model_rate`), which callbacks may set, and its count of steps.
        model_rate, **kwargs: As `SelfUpdatingHead`.

    Raises:
        TypeError: `optimizer` is not a `RowOptimizer`, or cannot serve heads.
        ValueError: `optimizer` already serves another layer or model, or has options by which Keras
            changes gradients or weights outside of a step (`clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `gradient_accumulation_steps`, `loss_scale_factor`). When
            the head is built: the optimizer excludes weights from its decay.
        AttributeError: The optimizer is replaced after the head was built.
    """

    def __init__(self, num_classes: int, optimizer: RowOptimizer, **kwargs: Any) -> None:
        super().__init__(num_classes, **kwargs)
        self.optimizer = optimizer

    # If other workers hold the same rows: `data_replicas` of `connect`.
    replicated: ReplicatedRows | None = None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        _refuse_built(self.optimizer)  # before anything is created
        self.optimizer.check_dtypes({self.variable_dtype})
        super().build(input_shape)

    @property
    def optimizer(self) -> RowOptimizer:
        """The head's optimizer, which is not the model's."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: RowOptimizer) -> None:
        if self.built:
            raise AttributeError(
                f"the optimizer of {full_name(self)} can't be replaced once the head is built, as "
                f"it has the head's slots; got {optimizer!r}. Set head.optimizer.learning_rate, or "
                "make a new head and copy the weights."
            )
        _check_optimizer(optimizer)
        self._optimizer = optimizer

    def rule_of(self, kernel: Any) -> RowRule:
        """Returns the optimizer's rule in this step for a row of W, extended by its b."""
        return self.optimizer.rule_of(kernel)._replace(unit_rows=self.cosine_scale is not None)

    @property
    def present_rate(self) -> Any:
        """The learning rate of the present step."""
        rate = self.optimizer.learning_rate
        return rate if self.optimizer.has_schedule else self.followed(rate)

    @property
    def step_number(self) -> Any:
        """The count of steps of the head's optimizer."""
        return self.optimizer.iterations.value

    def step_and_draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the seed of the present step's draws: see `seed_of_step`."""
        return self.step_number, self.draw

    def count_step(self) -> None:
        # A strategy's variable can't be assigned in a branch of a graph.
        bare_variable(self.optimizer.iterations).assign_add(1)

    def weights_of(self, width: int, workers: int = 1) -> list[Weight]:
        return self.with_slots(super().weights_of(width, workers))

    def with_slots(self, weights: Sequence[Weight]) -> list[Weight]:
        """Returns weights and the optimizer's state for them."""
        own_optimizer = OptimizerMemory(self.optimizer)
        own = [weight for weight in weights if weight.part == "weights"]
        return [*weights, *(slot for weight in own for slot in own_optimizer.slots_of(weight))]

    def build_optimizer(self, weights: Sequence[Any]) -> None:
        """Creates the slots of the weights; skips None."""
        _refuse_built(self.optimizer)  # another head may have built it meanwhile
        _refuse_exclusions(self.optimizer)
        own = [weight for weight in weights if weight is not None]
        self.optimizer.build(own)
        mark_slots(self.optimizer.variables, own)

    def replicate(self) -> None:
        """Prepares W and b for several workers that hold the same rows."""
        self.replicated = self.workers.replicas.pick(lambda: None, self._with_replicas)()

    def _with_replicas(self) -> ReplicatedRows:
        with tf.init_scope():
            rows = ReplicatedRows(self.workers.replicas, self.kernel, self.bias, self.name)
            rows.start_alike()
        return rows

    @property
    def unsaved_variables(self) -> list[tf.Variable]:
        """As `SelfUpdatingHead`, and the variables that add up gradients."""
        sums = [] if self.replicated is None else self.replicated.sums.variables
        return [*super().unsaved_variables, *sums]

    def slots_of(self, weight: Any) -> list[tf.Variable]:
        """Returns the slots of a weight; an empty list for None."""
        return [] if weight is None else self.optimizer.slots_of(weight)

    def update_rows(
        self,
        kernel: Any,
        bias: Any,
        batch: CandidateGradients,
        update: bool,
        gradient: bool = True,
    ) -> tf.Tensor:
        """Updates the rows of W and b that a batch touches; returns dL/dh.

        `update` and `gradient` are as in `candidate_update`.
        """
        if update and self.replicated is not None:
            found = candidate_gradients(kernel, bias, self.replicated.sums, *batch)
            return self.take_step_by(self.replicated.sum_of_some(found, self.step_number))
        slots = self.slots_of(kernel), self.slots_of(bias)
        step = self.rule_of(kernel), self.present_rate
        return candidate_update(
            kernel, bias, *slots, *batch, *step, update=update, gradient=gradient
        )

    def take_step_by(self, found: RowGradients) -> tf.Tensor:
        """Updates rows of W and b by their gradients; returns dL/dh."""
        with tf.control_dependencies([found.hidden]):
            ids = tf.identity(found.ids)
        rule, rate = self.rule_of(self.kernel), self.present_rate
        row_update(self.kernel, self.slots_of(self.kernel), ids, found.kernel, rule, rate)
        if self.bias is not None:
            rule = rule._replace(random_bits=rule.random_bits.of_bias())
            row_update(self.bias, self.slots_of(self.bias), ids, found.bias, rule, rate)
        return found.hidden


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, RowOptimizer):
        raise TypeError(
            f"optimizer must be a RowOptimizer; got {optimizer!r}. Use "
            "tlo.optimizers.RowAdam(1e-3), RowAdagrad or RowSGD"
        )
    if not optimizer.serves_heads:
        raise TypeError(f"optimizer must be one that serves heads, as RowAdam; got {optimizer!r}")
    _refuse_built(optimizer)
    for option in _OPTIONS_OF_KERAS:
        value = getattr(optimizer, option)
        if value:
            raise ValueError(
                f"optimizer of a head must not have {option}, which only model.compile applies; "
                f"got {option}={value!r}. To clip the gradient of each row, use row_clip_norm."
            )


def _refuse_exclusions(optimizer: RowOptimizer) -> None:
    by_variable = getattr(optimizer, "_exclude_from_weight_decay", None)
    by_name = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    if optimizer.row_weight_decay and (by_variable or by_name):
        raise ValueError(
            "optimizer of a head must not have exclude_from_weight_decay: W and b take one step, "
            f"by one rule; got weight_decay={optimizer.row_weight_decay} with exclusions"
        )


def _refuse_built(optimizer: RowOptimizer) -> None:
    """Raises an error if the optimizer already has slots: they belong to other weights."""
    if optimizer.built:
        raise ValueError(
            f"optimizer must be one that serves no other layer or model yet; got {optimizer!r}, "
            "which is built. Give each head a separate optimizer."
        )
