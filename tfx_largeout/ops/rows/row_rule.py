# SPDX-License-Identifier: Apache-2.0
"""RowRule: what SGD, Adagrad or Adam do to a row, and what a variable needs for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

OP_DTYPES = (tf.float32, tf.bfloat16)
"""The dtypes of the variables that the custom ops serve, on GPUs too where they have kernels."""

_DTYPES = (*OP_DTYPES, tf.float64)
_NUM_HYPERPARAMETERS = {"sgd": 2, "adagrad": 1, "adam": 3}


class RowRule(NamedTuple):
    """What a step does to a row w with gradient g, at learning rate eta. Plain data.

    First g is scaled down to `row_clip_norm`, then w is multiplied by 1 - eta `weight_decay`. Then

    - sgd: w <- w - eta g; with a momentum mu: m <- mu m - eta g, and w <- w + m, or with Nesterov's
      w <- w + mu m - eta g;
    - adagrad: a <- a + g^2, w <- w - eta g / sqrt(a + epsilon);
    - adam: t <- t + 1, m <- beta_1 m + (1 - beta_1) g, v <- beta_2 v + (1 - beta_2) g^2,
      w <- w - eta sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon).

    These are the steps of Keras's optimizers of that name where each row is updated in each step.
    Adam's t is the row's own age: with the common count of steps, the first steps of a row that
    shows up late would be up to (1 - beta_1) / sqrt(1 - beta_2) = 3.2 times too long.

    With `unit_rows` a step begins with g <- g - w <w, g> / <w, w>, the gradient of a function of
    w / ||w|| where ||w|| = 1, and ends with w <- w / ||w||, if the norm is not 1 within rounding. A
    row of zeros, which has no direction yet, takes g as it is.

    Attributes:
        method: `"sgd"`, `"adagrad"` or `"adam"`.
        hyperparameters: sgd: (momentum, nesterov as 0 or 1); adagrad: (epsilon,);
            adam: (beta_1, beta_2, epsilon). Numbers, or float64 scalars, which are looked at by the
            custom op alone.
        weight_decay: At least 0.
        row_clip_norm: Above 0, or None: gradients are not clipped. The norm is that of one row of
            one variable: of a bias, the absolute value.
        unit_rows: Whether rows, of norm 1 or 0, are kept at norm 1. Of a weight without a bias.
    """

    method: str
    hyperparameters: tuple[Any, ...]
    weight_decay: float = 0.0
    row_clip_norm: float | None = None
    unit_rows: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the slots, in the order in which the ops take them.

        `"age"` is uint32 `[C]`, how often each row was updated, or 2^31 - 1 if more often: Adam's
        correction is 1 by then. The others have the shape of the weight, and are float32, or
        float64 beside a float64 weight.
        """
        if self.method == "sgd":
            return ("momentum",) if self.hyperparameters[0] != 0 else ()
        return ("accumulator",) if self.method == "adagrad" else ("m", "v", "age")

    def check(self) -> None:
        """Refuses a rule that is none: of an unknown method, or with a number out of range."""
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
            # Below, it would be 0 in float32, and 0 / 0 could come up.
            _require("epsilon", self.hyperparameters[-1], at_least=1e-37)
        _require("weight_decay", self.weight_decay, at_least=0)
        if self.row_clip_norm is not None:
            _require("row_clip_norm", self.row_clip_norm, at_least=1e-37)


def numbers_of(rule: RowRule) -> tf.Tensor:
    """Returns the numbers of a rule as the custom ops take them, `[n]` float64, on the host."""
    row_clip_norm = math.inf if rule.row_clip_norm is None else rule.row_clip_norm
    numbers = [rule.weight_decay, row_clip_norm, *rule.hyperparameters]
    if rule.unit_rows:
        numbers.append(1.0)
    with tf.device("CPU:0"):
        return tf.convert_to_tensor(numbers, tf.float64)  # one constant where all are numbers


def rate_in(dtype: tf.DType, learning_rate: Any) -> tf.Tensor:
    """Returns a learning rate, a number of Python or a tensor, as a tensor of a dtype."""
    if isinstance(learning_rate, (int, float)):
        return tf.constant(learning_rate, dtype)
    rate = tf.cast(learning_rate, dtype)
    if rate.shape.rank not in (0, None):
        raise ValueError(f"learning_rate must be a scalar; got shape {rate.shape}")
    return rate


def compute_dtype(variable: tf.Variable) -> tf.DType:
    """Returns the dtype to compute in with a variable: float32, bfloat16 or float64."""
    if variable.dtype not in _DTYPES:
        raise TypeError(
            f"weights must be float32, bfloat16 or float64; got dtype {variable.dtype.name}"
        )
    return tf.float64 if variable.dtype == tf.float64 else tf.float32


def check_slots(
    name: str, variable: tf.Variable, slots: Sequence[tf.Variable], rule: RowRule
) -> None:
    """Refuses slots that are not those of a rule for a variable."""
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
    for slot_name, slot in zip(rule.slots, slots, strict=True):
        is_age = slot_name == "age"
        shape = variable.shape[:1] if is_age else variable.shape
        dtype = tf.uint32 if is_age else compute_dtype(variable)
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
