# SPDX-License-Identifier: Apache-2.0
"""RowRule: the update of a row by SGD, Adagrad or Adam, and its slots."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import choice_argument
from tfx_largeout.devices import HOST
from tfx_largeout.ops.rows.stochastic_rounding import RandomBits

OP_DTYPES = (tf.float32, tf.bfloat16)
"""The dtypes of the variables that the custom ops serve, on GPUs too where they have kernels."""

_DTYPES = (*OP_DTYPES, tf.float64)
MOMENT_DTYPES = ("float32", "bfloat16")
ROUNDINGS = ("nearest", "stochastic", "compensated")

_NUM_HYPERPARAMETERS = {"sgd": 2, "adagrad": 1, "adam": 3}


class RowRule(NamedTuple):
    """The update of a row w with gradient g and learning rate eta. Plain data.

    First g is scaled down to `row_clip_norm`, then w is multiplied by 1 - eta `weight_decay`. Then

    - sgd: w <- w - eta g; with a momentum mu: m <- mu m - eta g, and w <- w + m, or with Nesterov's
      w <- w + mu m - eta g;
    - adagrad: a <- a + g^2, w <- w - eta g / sqrt(a + epsilon);
    - adam: t <- t + 1, m <- beta_1 m + (1 - beta_1) g, v <- beta_2 v + (1 - beta_2) g^2,
      w <- w - eta sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon).

    These equal Keras's optimizers of this name if each row is updated in each step. Adam's t counts
    the updates of the row: with the count of all steps, the first steps of a late row would be up
    to (1 - beta_1) / sqrt(1 - beta_2) = 3.2 times too long.

    With `unit_rows` a step begins with g <- g - w <w, g> / <w, w>, the gradient of a function of w
    / ||w|| where ||w|| = 1, and ends with w <- w / ||w||, if the norm is not 1 within rounding. For
    a row of zeros, without a direction, g is unchanged.

    With `row_wise`, a of Adagrad and v of Adam are one number per row: the mean of g^2 over its
    columns replaces g^2.

    bfloat16 weights are updated in float32, and then rounded: to the `"nearest"`; `"stochastic"`,
    up or down so that the mean is exact; or `"compensated"`, to the nearest, with the rounding
    error c stored in bfloat16: the next step starts from w + c. bfloat16 moments are always rounded
    stochastically: with beta_2 = 0.999, v changes by less than half of the gap between bfloat16
    numbers.

    Attributes:
        method: `"sgd"`, `"adagrad"` or `"adam"`.
        hyperparameters: sgd: (momentum, nesterov as 0 or 1); adagrad: (epsilon,); adam: (beta_1,
            beta_2, epsilon). Numbers, or float64 scalars, which only the custom op checks.
        weight_decay: At least 0.
        row_clip_norm: Above 0, or None: gradients are not clipped. The norm is of one row of one
            variable; for a bias, the absolute value.
        unit_rows: Whether rows, of norm 1 or 0, are kept at norm 1. Only without a bias.
        row_wise: Whether a, or v, is one number per row. Not for sgd.
        moment_dtype: `"float32"` (float64 for a float64 weight) or `"bfloat16"`: the dtype of the
            momentum, of m and of v, unless they are one number per row.
        rounding: How weights of bfloat16 are rounded; `"nearest"` for others.
        random_bits: The key of random bits, if used. For a bias: see `of_bias`.
    """

    method: str
    hyperparameters: tuple[Any, ...]
    weight_decay: float = 0.0
    row_clip_norm: float | None = None
    unit_rows: bool = False
    row_wise: bool = False
    moment_dtype: str = "float32"
    rounding: str = "nearest"
    random_bits: RandomBits = RandomBits()

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the slots, in the order of the ops' inputs.

        `"age"` is uint32 `[C]`, the number of updates of each row, at most 2^31 - 1: Adam's
        correction is 1 by then. See `slot_like` for the others.
        """
        if self.method == "sgd":
            slots: tuple[str, ...] = ("momentum",) if self.hyperparameters[0] != 0 else ()
        else:
            slots = ("accumulator",) if self.method == "adagrad" else ("m", "v", "age")
        return (*slots, "compensation") if self.rounding == "compensated" else slots

    def slot_like(self, name: str, shape: Any, dtype: tf.DType) -> tuple[Any, tf.DType]:
        """Returns the shape and the dtype of a slot for the shape and dtype of a weight."""
        if name == "age":
            return shape[:1], tf.uint32
        if name == "compensation":
            return shape, tf.bfloat16
        wide = tf.float64 if dtype == tf.float64 else tf.float32
        if self.row_wise and name in ("accumulator", "v"):
            return shape[:1], wide
        narrow = self.moment_dtype == "bfloat16" and name != "accumulator"
        return shape, tf.bfloat16 if narrow else wide

    @property
    def is_random(self) -> bool:
        """Whether a step uses random bits."""
        return self.rounding == "stochastic" or self.moment_dtype == "bfloat16"

    @property
    def has_options(self) -> bool:
        """Whether it has an option that the GPU kernels don't support."""
        options = self.unit_rows, self.row_wise, self.moment_dtype, self.rounding
        return options != (False, False, "float32", "nearest")

    def check(self) -> None:
        """Raises ValueError for an unknown method, or a number out of range."""
        if self.method not in _NUM_HYPERPARAMETERS:
            methods = ", ".join(_NUM_HYPERPARAMETERS)
            raise ValueError(f"method must be one of {methods}; got {self.method!r}")
        count = _NUM_HYPERPARAMETERS[self.method]
        if len(self.hyperparameters) != count:
            raise ValueError(
                f"hyperparameters of {self.method} must be {count} numbers; "
                f"got {self.hyperparameters}"
            )
        if self.method == "sgd":
            _require("momentum", self.hyperparameters[0], at_least=0, below=1)
            if self.hyperparameters[1] not in (0, 1):
                raise ValueError(f"nesterov must be 0 or 1; got {self.hyperparameters[1]}")
        else:
            for beta in self.hyperparameters[:-1]:
                _require("beta", beta, at_least=0, below=1)
            # A smaller value would be 0 in float32, and give 0 / 0.
            _require("epsilon", self.hyperparameters[-1], at_least=1e-37)
        if self.method == "sgd" and self.row_wise:
            raise ValueError("row_wise must be False for sgd, which has no squares; got True")
        choice_argument("moment_dtype", self.moment_dtype, MOMENT_DTYPES)
        choice_argument("rounding", self.rounding, ROUNDINGS)
        _require("weight_decay", self.weight_decay, at_least=0)
        if self.row_clip_norm is not None:
            _require("row_clip_norm", self.row_clip_norm, at_least=1e-37)


def numbers_of(rule: RowRule) -> tf.Tensor:
    """Returns the numbers of a rule for the custom ops, `[n]` float64, on the host."""
    # The largest number means none. An infinite one fails tf.debugging.enable_check_numerics.
    row_clip_norm = sys.float_info.max if rule.row_clip_norm is None else rule.row_clip_norm
    numbers = [rule.weight_decay, row_clip_norm, *rule.hyperparameters]
    if rule.has_options:
        narrow, rounding = rule.moment_dtype == "bfloat16", ROUNDINGS.index(rule.rounding)
        options = [rule.unit_rows, rule.row_wise, narrow, rounding]
        numbers += [*map(float, options), *rule.random_bits.numbers]
    with tf.device(HOST):
        return tf.convert_to_tensor(numbers, tf.float64)  # a single constant if all are numbers


def rate_in(dtype: tf.DType, learning_rate: Any) -> tf.Tensor:
    """Returns a learning rate, a Python number or a tensor, as a tensor of a dtype."""
    if isinstance(learning_rate, (int, float)):
        return tf.constant(learning_rate, dtype)
    rate = tf.cast(learning_rate, dtype)
    if rate.shape.rank not in (0, None):
        raise ValueError(f"learning_rate must be a scalar; got shape {rate.shape}")
    return rate


def compute_dtype(variable: tf.Variable) -> tf.DType:
    """Returns the compute dtype for a variable of float32, bfloat16 or float64."""
    if variable.dtype not in _DTYPES:
        raise TypeError(
            f"weights must be float32, bfloat16 or float64; got dtype {variable.dtype.name}"
        )
    return tf.float64 if variable.dtype == tf.float64 else tf.float32


def check_slots(
    name: str, variable: tf.Variable, slots: Sequence[tf.Variable], rule: RowRule
) -> None:
    """Raises an error if slots don't fit a rule and a variable."""
    if variable.shape.rank == 0:
        raise ValueError(f"{name} must be of rank 1 or higher; got shape {variable.shape}")
    if rule.unit_rows and variable.shape.rank != 2:
        raise ValueError(
            f"{name} must be of rank 2 where its rows are kept at norm 1; got shape "
            f"{variable.shape}"
        )
    if len(slots) != len(rule.slots):
        raise ValueError(
            f"slots of {name} must be {len(rule.slots)} variables, {rule.slots}; got {len(slots)}"
        )
    if rule.rounding != "nearest" and variable.dtype != tf.bfloat16:
        raise ValueError(
            f"{name} must be bfloat16 for rounding={rule.rounding!r}; got {variable.dtype.name}"
        )
    for slot_name, slot in zip(rule.slots, slots, strict=True):
        shape, dtype = rule.slot_like(slot_name, variable.shape, compute_dtype(variable))
        if slot.shape != shape:
            raise ValueError(
                f"slot {slot_name!r} of {name} must have shape {shape}; got {slot.shape}"
            )
        if slot.dtype != dtype:
            raise TypeError(
                f"slot {slot_name!r} of {name} must be {dtype.name}; got {slot.dtype.name}"
            )


def _require(name: str, value: Any, at_least: float, below: float = math.inf) -> None:
    if not isinstance(value, tf.Tensor) and not at_least <= value < below:
        limit = "finite" if below == math.inf else f"below {below}"
        raise ValueError(f"{name} must be at least {at_least} and {limit}; got {value}")
