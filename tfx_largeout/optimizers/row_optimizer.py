# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose step costs O(rows touched): SGD, Adagrad and Adam."""

from __future__ import annotations

import numbers
import random
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import (
    choice_argument,
    flag_argument,
    full_name,
    integer_argument,
    number_argument,
)
from tfx_largeout.devices import HOST
from tfx_largeout.distribute.class_shard import ClassShard, own_rows, shard_of
from tfx_largeout.keras_internals import OptimizerHooks
from tfx_largeout.ops.rows.large_variables import load_variables, save_variables
from tfx_largeout.ops.rows.row_rule import MOMENT_DTYPES, RowRule, compute_dtype
from tfx_largeout.ops.rows.row_update import row_step, row_update
from tfx_largeout.ops.rows.short_weights import warn_of_short_weights
from tfx_largeout.ops.rows.stochastic_rounding import RandomBits
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.run_time_checks import refuse_replicas, refuse_xla
from tfx_largeout.saving import check_saved_shapes

SHORT_OPTIONS = {"stochastic_rounding", "compensation"}
"""The options of an optimizer that are for weights in bfloat16 alone."""


class RowOptimizer(OptimizerHooks):
    """A Keras optimizer that reads and writes only the rows for which there is a gradient.

    A row is `weight[i]`: for W `[C, D]` the weights of a class, for an embedding `[V, D]` the
    weights of a word. A gradient that is `tf.IndexedSlices` (of a gather: embeddings,
    `SparseDense`, sampled losses of `tf.nn`) touches its rows; repeated rows are added up first. A
    dense gradient touches all rows, and the step then equals the Keras optimizer of that name
    (`RowRMSprop`: Adam without momentum).

    There are two uses: in `model.compile(optimizer=...)` for all weights of a model, or as the
    `optimizer` of a `SampledHead`, which then updates its weights in the backward op
    (`serves_heads`). In both, its state is saved with the model.

    Other rows do not change: they get neither momentum nor decay. This makes a step independent of
    the number of rows. With momentum or moments it is not the dense method, which changes each row
    in every step (except for `RowRMSprop`).

    With rounding to nearest, weights in bfloat16 lose steps below about 1/512 of a weight. Two
    options avoid this:

    - `stochastic_rounding`: x is rounded up with a probability of its distance from the lower
      neighbour divided by the gap, so that the mean is x. Random bits depend on the seed,
      `iterations`, the class and the column: a resumed run draws the same.
    - `compensation`: a bfloat16 slot stores the rounding error, which the next step adds to the
      weight first (Kahan summation): two more bytes per number, and steps down to about 2^-17 of a
      weight.

    ```python
    head = tlo.heads.SampledHead(
        num_classes,
        sampler,
        tlo.optimizers.RowAdagrad(0.1, row_wise=True, stochastic_rounding=True),
        dtype="bfloat16",  # 2 D + 10 bytes per class with a bias; of RowAdam(), float32: 12 D + 20
    )
    ```

    Cost: O(rows touched by the gradient).

    Args:
        learning_rate: eta: a positive float, a `keras.optimizers.schedules.LearningRateSchedule`
            or a callable, as for any Keras optimizer.
        weight_decay: lambda >= 0. A touched row is multiplied by 1 - eta lambda first. Default 0.
        row_clip_norm: The largest norm of a row's gradient; longer ones are scaled down. Default
            None: no limit.
        stochastic_rounding: Whether bfloat16 weights are rounded at random; at least one weight
            must be bfloat16. Default False.
        compensation: Whether bfloat16 weights keep their rounding error. Default False.
        moment_dtype: The dtype of the momentum of `RowSGD`, and of m and v of `RowAdam`:
            `"float32"` (default; float64 for float64 weights) or `"bfloat16"`, which is rounded at
            random: with rounding to nearest v would not change, as 1 - beta_2 = 0.001 is less than
            1/512.
        seed: The seed of random bits, an integer in [0, 2^32), the same on all workers. Default
            None: drawn at construction, if needed, and kept in the configuration.
        name: The name of the optimizer.
        **kwargs: `clipnorm`, `use_ema`, `gradient_accumulation_steps` and other arguments of Keras
            optimizers, for `model.compile` (averages read all rows; accumulated gradients are
            dense, so that each row takes a step). With a head they raise a ValueError.

    Raises:
        ValueError: An argument is out of range, or `stochastic_rounding` and `compensation` are
            both True. When slots are created: one of them is True, and no weight is bfloat16.
        RuntimeError: A step is compiled with XLA, which has no row updates, or a strategy has more
            than one replica.
    """

    serves_heads = True
    """Whether a self-updating head may have it: the rule says all that a step does."""

    method = ""
    hyperparameters: tuple[str, ...] = ()
    """The method of the rule, and the names of the arguments that it takes."""

    options: tuple[str, ...] = ()
    """The names of the method's other arguments."""

    row_wise: bool = False
    """Whether the sum or the mean of squares is one number per row."""

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str | None = None,
        *,
        stochastic_rounding: bool = False,
        compensation: bool = False,
        moment_dtype: str = "float32",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(learning_rate, numbers.Real):  # also NumPy's
            learning_rate = number_argument("learning_rate", learning_rate, above=0)
        with tf.device(HOST):  # with the rate; seeds of draws depend on `iterations`
            super().__init__(learning_rate, name=name, **kwargs)
        self.row_weight_decay = number_argument("weight_decay", weight_decay, at_least=0)
        if row_clip_norm is not None:
            row_clip_norm = number_argument("row_clip_norm", row_clip_norm, above=0)
        self.row_clip_norm = row_clip_norm
        self.stochastic_rounding = flag_argument("stochastic_rounding", stochastic_rounding)
        self.compensation = flag_argument("compensation", compensation)
        if self.stochastic_rounding and self.compensation:
            raise ValueError("stochastic_rounding must be False with compensation; got both True")
        self.moment_dtype = choice_argument("moment_dtype", moment_dtype, MOMENT_DTYPES)
        if moment_dtype != "float32" and "moment_dtype" not in self.options:
            raise ValueError(
                f"moment_dtype must be 'float32' for {type(self).__name__}, which has no moments; "
                f"got {moment_dtype!r}"
            )
        if seed is None and (self.stochastic_rounding or moment_dtype == "bfloat16"):
            seed = random.randrange(2**31)  # seeded by keras.utils.set_random_seed
        self.seed = seed if seed is None else integer_argument("seed", seed, 0, 2**32 - 1)

    @property
    def keeps_small_steps(self) -> bool:
        """Whether steps below the precision of a weight's dtype have an effect."""
        return self.stochastic_rounding or self.compensation

    @property
    def rule(self) -> RowRule:
        """The update of a row in a step."""
        if not self.method:
            raise NotImplementedError(f"{type(self).__name__} must name a `method` or write `rule`")
        numbers = tuple(float(getattr(self, name)) for name in self.hyperparameters)
        return RowRule(
            self.method,
            numbers,
            self.row_weight_decay,
            self.row_clip_norm,
            row_wise=self.row_wise,
            moment_dtype=self.moment_dtype,
        )

    @property
    def has_schedule(self) -> bool:
        """Whether the learning rate is a schedule or a function, not a variable."""
        return not isinstance(self._learning_rate, keras.Variable)

    def initial_slot(self, name: str) -> float:
        """Returns the initial value of a slot."""
        return 0.0

    def build(self, variables: list[Any]) -> None:
        """Creates the slots of `variables`."""
        if self.built:
            return
        refuse_replicas(
            "row optimizers serve one replica, or workers (tlo.distribute)",
            "Take FusedAdam, or compile the model outside of the scope of the strategy.",
        )
        self.check_dtypes({keras.backend.standardize_dtype(each.dtype) for each in variables})
        rules = [self._rounding(self.rule, variable) for variable in variables]
        self._slots = [
            [self._add_slot(variable, rule, name) for name in rule.slots]
            for variable, rule in zip(variables, rules, strict=True)
        ]
        super().build(variables)

    def slots_of(self, variable: Any) -> list[tf.Variable]:
        """Returns the slots of a variable, in the order of the rule."""
        return [bare_variable(slot) for slot in self._slots[self._place_of(variable)]]

    def forget_errors(self) -> None:
        """Resets the rounding errors of replaced weights."""
        for variable, slots in zip(self._trainable_variables, self._slots, strict=True):
            if self._rounding(self.rule, variable).rounding == "compensated":
                slots[-1].assign(keras.ops.zeros_like(slots[-1]))

    def _place_of(self, variable: Any) -> int:
        wanted = bare_variable(variable)
        return [bare_variable(own) is wanted for own in self._trainable_variables].index(True)

    def before_clipping(self, gradients: list[Any]) -> list[Any]:
        """Clips the sum of a row's slices, not each slice."""
        return [_with_a_slice_a_row(gradient) for gradient in gradients]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        warn_of_short_weights(full_name(self), [variable], self)
        self.take_step(gradient, variable, self.rule_of(variable), learning_rate)

    def take_step(self, gradient: Any, variable: Any, rule: RowRule, learning_rate: Any) -> None:
        """Applies a rule to the rows of a variable that a gradient touches."""
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
        """Returns the rule for a variable in this step; no decay if it is excluded."""
        rule = self.rule
        if not self._use_weight_decay(variable):
            rule = rule._replace(weight_decay=0.0)
        return self.in_this_step(rule, variable)

    def in_this_step(self, rule: RowRule, variable: Any) -> RowRule:
        """Returns a rule with a variable's rounding and the random bits of this step."""
        rule = self._rounding(rule, variable)
        if not rule.is_random:
            return rule
        place, step = self._place_of(variable), bare_variable(self.iterations)
        shard = shard_of(self._trainable_variables[place]) or ClassShard()
        bits = RandomBits(self.seed or 0, tf.convert_to_tensor(step), place, shard)
        return rule._replace(random_bits=bits)

    def _rounding(self, rule: RowRule, variable: Any) -> RowRule:
        if keras.backend.standardize_dtype(variable.dtype) != "bfloat16":
            return rule
        if self.stochastic_rounding:
            return rule._replace(rounding="stochastic")
        return rule._replace(rounding="compensated") if self.compensation else rule

    def check_dtypes(self, dtypes: set[str]) -> None:
        """Raises ValueError if no weight has the dtype that an option needs."""
        if dtypes and "bfloat16" not in dtypes and self.keeps_small_steps:
            option = "stochastic_rounding" if self.stochastic_rounding else "compensation"
            raise ValueError(
                f"{option} of {full_name(self)} must be False where no weights are bfloat16; got "
                f"weights of {', '.join(sorted(dtypes))}. Give the layer dtype='bfloat16', or "
                "leave the option out."
            )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "weight_decay": self.row_weight_decay,
            "row_clip_norm": self.row_clip_norm,
            "stochastic_rounding": self.stochastic_rounding,
            "compensation": self.compensation,
            "seed": self.seed,
            **{name: getattr(self, name) for name in (*self.hyperparameters, *self.options)},
        }

    def save_own_variables(self, store: Any) -> None:
        save_variables(self.variables, store)

    def load_own_variables(self, store: Any) -> None:
        if len(store.keys()) != len(self.variables):
            super().load_own_variables(store)  # Keras warns, and loads nothing
            return
        owner = full_name(self)
        store = own_rows(store, self.variables, owner)
        check_saved_shapes(owner, self.variables, store)
        load_variables(self.variables, store)

    def _apply_weight_decay(self, variables: list[Any]) -> None:
        """Does nothing: only touched rows decay, by the rule."""

    def _add_slot(self, variable: Any, rule: RowRule, name: str) -> Any:
        dtype = tf.as_dtype(keras.backend.standardize_dtype(variable.dtype))
        shape, slot_dtype = rule.slot_like(name, variable.shape, dtype)
        value = 0.0 if name == "compensation" else self.initial_slot(name)
        return self.add_variable(
            shape=shape,
            # Not by `Constant`, which allocates an array of ones as well.
            initializer=lambda shape, dtype: tf.fill(shape, tf.cast(value, dtype)),
            dtype=slot_dtype.name,
            name=f"{variable.path.replace('/', '_')}_{name}",
        )


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowSGD(RowOptimizer):
    """SGD on the rows that a step touches.

    With momentum mu, for a touched row w with gradient g:

        m <- mu m - eta g,  w <- w + m  (Nesterov: w <- w + mu m - eta g)

    and w <- w - eta g without. The momentum of a row is kept until the row is touched again.

    Args:
        learning_rate: eta. Default 0.01.
        momentum: mu, 0 <= mu < 1. Default 0: no slot.
        nesterov: Whether to look ahead, as Nesterov does. Default False.
        weight_decay, row_clip_norm, name, **kwargs: As `RowOptimizer`: `stochastic_rounding`,
            `compensation`, `moment_dtype`, `seed` and others.

    Raises:
        ValueError: An argument is out of range.
    """

    method, hyperparameters = "sgd", ("momentum", "nesterov")
    options = ("moment_dtype",)

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
        self.nesterov = flag_argument("nesterov", nesterov)
        if self.moment_dtype != "float32" and not self.momentum:
            raise ValueError(
                f"moment_dtype must be 'float32' without momentum; got {self.moment_dtype!r}"
            )


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowAdagrad(RowOptimizer):
    """Adagrad on the rows that a step touches.

        a <- a + g^2,  w <- w - eta g / sqrt(a + epsilon)

    A row with gradient 0 does not change under Adagrad, so this is the dense method at a lower cost
    (except for `weight_decay`).

    With `row_wise` a is one number per row r with D columns j, as usual for large embeddings:

        a_r <- a_r + sum_j g_rj^2 / D,  w_r <- w_r - eta g_r / sqrt(a_r + epsilon)

    Args:
        learning_rate: eta. Default 0.01.
        initial_accumulator_value: The initial value of a, at least 0. Default 0.1.
        epsilon: Above 0. Default 1e-7.
        weight_decay, row_clip_norm, name, **kwargs: As `RowOptimizer`: `stochastic_rounding`,
            `compensation`, `seed` and others.
        row_wise: Whether a slot has the shape `[C]` instead of the weight's shape. Default False.

    Raises:
        ValueError: An argument is out of range.

    References:
        Duchi, Hazan, Singer 2011, Adaptive Subgradient Methods. Row-wise: Naumov et al. 2019, Deep
        Learning Recommendation Model (DLRM).
    """

    method, hyperparameters = "adagrad", ("epsilon",)
    options = ("initial_accumulator_value", "row_wise")

    def __init__(
        self,
        learning_rate: Any = 0.01,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str = "row_adagrad",
        *,
        row_wise: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, row_clip_norm, name, **kwargs)
        self.initial_accumulator_value = number_argument(
            "initial_accumulator_value", initial_accumulator_value, at_least=0
        )
        self.epsilon = number_argument("epsilon", epsilon, above=0)
        self.row_wise = flag_argument("row_wise", row_wise)

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowAdam(RowOptimizer):
    """Adam on the rows that a step touches.

    For a touched row w with gradient g, and t the number of updates of this row, including this
    one:

        m <- beta_1 m + (1 - beta_1) g,  v <- beta_2 v + (1 - beta_2) g^2
        w <- w - eta sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)

    The bias correction compensates for m and v starting from 0, so it must count the updates of
    *this* row. With the count of all steps, as in many lazy variants of Adam, the first step of a
    late row would be (1 - beta_1) / sqrt(1 - beta_2) = 3.2 times too long. If all rows are touched
    in each step, this is Keras's Adam.

    With `row_wise` v is one number per row, for the mean of g^2 over its D columns:

        v_r <- beta_2 v_r + (1 - beta_2) sum_j g_rj^2 / D

    Slots: m and v, of the weight's shape and `moment_dtype`, and t, uint32 per row, at most 2^31 -
    1. With `row_wise` v is float32 `[C]`.

    Args:
        learning_rate: eta. Default 0.001.
        beta_1: 0 <= beta_1 < 1. Default 0.9.
        beta_2: 0 <= beta_2 < 1. Default 0.999.
        epsilon: Above 0. Default 1e-7.
        weight_decay, row_clip_norm, name, **kwargs: As `RowOptimizer`: `stochastic_rounding`,
            `compensation`, `moment_dtype`, `seed` and others.
        row_wise: Whether v has the shape `[C]` instead of the weight's shape. Default False.

    Raises:
        ValueError: An argument is out of range.

    References:
        Kingma, Ba 2015, Adam: A Method for Stochastic Optimization, end of section 2.
    """

    method, hyperparameters = "adam", ("beta_1", "beta_2", "epsilon")
    options = ("row_wise", "moment_dtype")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str = "row_adam",
        *,
        row_wise: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, row_clip_norm, name, **kwargs)
        self.beta_1 = number_argument("beta_1", beta_1, at_least=0, below=1)
        self.beta_2 = number_argument("beta_2", beta_2, at_least=0, below=1)
        self.epsilon = number_argument("epsilon", epsilon, above=0)
        self.row_wise = flag_argument("row_wise", row_wise)


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
