# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose step costs as much as the rows that it touches: SGD, Adagrad and Adam."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.distribute.class_shard import own_rows
from tfx_largeout.keras_internals import OptimizerHooks
from tfx_largeout.ops.rows.row_rule import RowRule, compute_dtype
from tfx_largeout.ops.rows.row_update import row_step, row_update
from tfx_largeout.ops.rows.short_weights import warn_of_short_weights
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.run_time_checks import refuse_replicas, refuse_xla
from tfx_largeout.saving import check_saved_shapes


class RowOptimizer(OptimizerHooks):
    """A Keras optimizer that reads and writes only the rows which a gradient names.

    A row is what `weight[i]` is: of W `[C, D]` the weights of a class, of an embedding `[V, D]`
    the weights of a word. A gradient that is `tf.IndexedSlices` (of a gather: embeddings,
    `SparseDense`, sampled losses of `tf.nn`) names its rows; repeated ones are added up first. A
    dense gradient names all of them, and the step is then as in Keras's optimizer of that name
    (`RowRMSprop`: Adam without momentum).

    It goes two ways: in `model.compile(optimizer=...)` for all weights of a model, or as the
    `optimizer` of a `SampledHead`, which then updates its weights in the backward op
    (`serves_heads`). Its state is saved with the model either way.

    Rows that a step does not name stay as they are: they get neither momentum nor decay. That is
    what makes a step independent of the number of rows, and with momentum or moments it is not the
    same method as the dense one, where each row moves in every step; `RowRMSprop` is.

    Cost: O(rows that the gradient names).

    Args:
        learning_rate: eta: a positive float, a `keras.optimizers.schedules.LearningRateSchedule`
            or a callable, as for any Keras optimizer.
        weight_decay: lambda >= 0. A touched row is multiplied by 1 - eta lambda first. Default 0.
        row_clip_norm: The gradient of a row is scaled down to this norm if it is longer. Default
            None: it is not.
        name: The name of the optimizer.
        **kwargs: `clipnorm`, `use_ema`, `gradient_accumulation_steps` and what else any Keras
            optimizer takes, in `model.compile` (with averages and accumulation all rows are
            visited, at that cost). With a head they raise a ValueError.

    Raises:
        ValueError: An argument is out of range.
        RuntimeError: A step is compiled with XLA, which knows no rows, or a strategy has more than
            one replica.
    """

    serves_heads = True
    """Whether a self-updating head may have it: the rule says all that a step does."""

    method = ""
    hyperparameters: tuple[str, ...] = ()
    """The method of the rule, and the names of the arguments that it takes."""

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(learning_rate, (int, float)):
            learning_rate = number_argument("learning_rate", learning_rate, above=0)
        super().__init__(learning_rate, name=name, **kwargs)
        self.row_weight_decay = number_argument("weight_decay", weight_decay, at_least=0)
        if row_clip_norm is not None:
            row_clip_norm = number_argument("row_clip_norm", row_clip_norm, above=0)
        self.row_clip_norm = row_clip_norm

    @property
    def rule(self) -> RowRule:
        """What a step does to a row."""
        if not self.method:
            raise NotImplementedError(f"{type(self).__name__} must name a `method` or write `rule`")
        numbers = tuple(float(getattr(self, name)) for name in self.hyperparameters)
        return RowRule(self.method, numbers, self.row_weight_decay, self.row_clip_norm)

    @property
    def has_schedule(self) -> bool:
        """Whether the learning rate is a schedule or a function, not a variable."""
        return not isinstance(self._learning_rate, keras.Variable)

    def initial_slot(self, name: str) -> float:
        """Returns the value from which a slot starts."""
        return 0.0

    def build(self, variables: list[Any]) -> None:
        """Makes the slots of `variables`."""
        if self.built:
            return
        refuse_replicas(
            "row optimizers serve one replica, or workers (tlo.distribute)",
            "Take FusedAdam, or compile the model outside of the scope of the strategy.",
        )
        self._slots = [
            [self._add_slot(variable, name) for name in self.rule.slots] for variable in variables
        ]
        super().build(variables)

    def slots_of(self, variable: Any) -> list[tf.Variable]:
        """Returns the slots of a variable it was built with, in the order of the rule."""
        wanted = bare_variable(variable)
        places = [bare_variable(own) is wanted for own in self._trainable_variables]
        return [bare_variable(slot) for slot in self._slots[places.index(True)]]

    def before_clipping(self, gradients: list[Any]) -> list[Any]:
        """Rows are clipped, not their parts."""
        return [_with_a_slice_a_row(gradient) for gradient in gradients]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        warn_of_short_weights(f"{type(self).__name__} {self.name!r}", [variable])
        self.take_step(gradient, variable, self.rule_of(variable), learning_rate)

    def take_step(self, gradient: Any, variable: Any, rule: RowRule, learning_rate: Any) -> None:
        """Does to the rows of a variable that a gradient names what a rule says."""
        refuse_xla(
            "row optimizers can't be compiled with XLA, which knows no rows",
            "jit_compile=True (or 'auto', Keras's default)",
            "Compile the model with jit_compile=False.",
        )
        slots = self.slots_of(variable)
        if isinstance(gradient, tf.IndexedSlices):
            ids, rows = _merged(gradient, compute_dtype(bare_variable(variable)))
            row_update(variable, slots, ids, rows, rule, learning_rate)
            return
        gradient = tf.cast(gradient, compute_dtype(bare_variable(variable)))
        values = row_step(rule, variable, slots, gradient, learning_rate)
        for target, value in zip([variable, *slots], values, strict=True):
            target.assign(value)

    def rule_of(self, variable: Any) -> RowRule:
        """Returns the rule for a variable: without decay if that is excluded."""
        if self._use_weight_decay(variable):
            return self.rule
        return self.rule._replace(weight_decay=0.0)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "weight_decay": self.row_weight_decay,
            "row_clip_norm": self.row_clip_norm,
            **{name: getattr(self, name) for name in self.hyperparameters},
        }

    def load_own_variables(self, store: Any) -> None:
        if len(store.keys()) == len(self.variables):  # else Keras warns, and loads nothing
            owner = f"{type(self).__name__} {self.name!r}"
            store = own_rows(store, self.variables, owner)
            check_saved_shapes(owner, self.variables, store)
        super().load_own_variables(store)

    def _apply_weight_decay(self, variables: list[Any]) -> None:
        """Does nothing: the rule lets only touched rows decay."""

    def _add_slot(self, variable: Any, name: str) -> Any:
        per_row, value = name == "age", self.initial_slot(name)
        return self.add_variable(
            shape=variable.shape[:1] if per_row else variable.shape,
            # Not by `Constant`, which makes an array of ones beside it.
            initializer=lambda shape, dtype: tf.fill(shape, tf.cast(value, dtype)),
            dtype="uint32" if per_row else _slot_dtype(variable),
            name=f"{variable.path.replace('/', '_')}_{name}",
        )


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowSGD(RowOptimizer):
    """SGD on the rows that a step touches.

    With momentum mu, for a touched row w with gradient g:

        m <- mu m - eta g,  w <- w + m  (Nesterov: w <- w + mu m - eta g)

    and w <- w - eta g without. The momentum of a row waits until it is touched again.

    Args:
        learning_rate: eta. Default 0.01.
        momentum: mu, 0 <= mu < 1. Default 0: no slot.
        nesterov: Whether to look ahead, as Nesterov does. Default False.
        weight_decay, row_clip_norm, name, **kwargs: As `RowOptimizer`.

    Raises:
        ValueError: An argument is out of range.
    """

    method, hyperparameters = "sgd", ("momentum", "nesterov")

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str = "row_sgd",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, row_clip_norm, name, **kwargs)
        self.momentum = number_argument("momentum", momentum, at_least=0, below=1)
        self.nesterov = bool(nesterov)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowAdagrad(RowOptimizer):
    """Adagrad on the rows that a step touches.

        a <- a + g^2,  w <- w - eta g / sqrt(a + epsilon)

    A row with gradient 0 does not move under Adagrad: this is the same method as the dense one,
    just cheaper (except for `weight_decay`).

    Args:
        learning_rate: eta. Default 0.01.
        initial_accumulator_value: From which a starts, at least 0. Default 0.1.
        epsilon: Above 0. Default 1e-7.
        weight_decay, row_clip_norm, name, **kwargs: As `RowOptimizer`.

    Raises:
        ValueError: An argument is out of range.

    References:
        Duchi, Hazan, Singer 2011, Adaptive Subgradient Methods.
    """

    method, hyperparameters = "adagrad", ("epsilon",)

    def __init__(
        self,
        learning_rate: Any = 0.01,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str = "row_adagrad",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, row_clip_norm, name, **kwargs)
        self.initial_accumulator_value = number_argument(
            "initial_accumulator_value", initial_accumulator_value, at_least=0
        )
        self.epsilon = number_argument("epsilon", epsilon, above=0)

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value

    def get_config(self) -> dict[str, Any]:
        start = {"initial_accumulator_value": self.initial_accumulator_value}
        return {**super().get_config(), **start}


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowAdam(RowOptimizer):
    """Adam on the rows that a step touches.

    For a touched row w with gradient g, and t the number of updates of this row, this one included:

        m <- beta_1 m + (1 - beta_1) g,  v <- beta_2 v + (1 - beta_2) g^2
        w <- w - eta sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)

    The bias correction makes up for m and v starting from 0, so it has to count how often *this*
    row was updated. With the count of all steps, as lazy variants of Adam often have it, the first
    step of a row that shows up late would be (1 - beta_1) / sqrt(1 - beta_2) = 3.2 times as long as
    it should be. Where all rows are touched in each step, this is Keras's Adam.

    Slots: m and v, float32 of the weight's shape, and t, uint32 a row, which stays at 2^31 - 1.

    Args:
        learning_rate: eta. Default 0.001.
        beta_1: 0 <= beta_1 < 1. Default 0.9.
        beta_2: 0 <= beta_2 < 1. Default 0.999.
        epsilon: Above 0. Default 1e-7.
        weight_decay, row_clip_norm, name, **kwargs: As `RowOptimizer`.

    Raises:
        ValueError: An argument is out of range.

    References:
        Kingma, Ba 2015, Adam: A Method for Stochastic Optimization, end of section 2.
    """

    method, hyperparameters = "adam", ("beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str = "row_adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, row_clip_norm, name, **kwargs)
        self.beta_1 = number_argument("beta_1", beta_1, at_least=0, below=1)
        self.beta_2 = number_argument("beta_2", beta_2, at_least=0, below=1)
        self.epsilon = number_argument("epsilon", epsilon, above=0)


def _slot_dtype(variable: Any) -> str:
    return "float64" if keras.backend.standardize_dtype(variable.dtype) == "float64" else "float32"


def _with_a_slice_a_row(gradient: Any) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    dtype = tf.float64 if gradient.dtype == tf.float64 else tf.float32
    ids, rows = _merged(gradient, dtype)
    return tf.IndexedSlices(rows, ids, gradient.dense_shape)


def _merged(gradient: tf.IndexedSlices, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up the slices of equal rows; returns ids `[n]` and rows `[n, ...]`."""
    ids, places = tf.unique(tf.cast(gradient.indices, tf.int64))
    rows = tf.math.unsorted_segment_sum(tf.cast(gradient.values, dtype), places, tf.size(ids))
    return ids, rows
