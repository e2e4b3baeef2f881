# SPDX-License-Identifier: Apache-2.0
"""Backward passes, and KeptPasses: passes kept in variables for one common step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.devices import HOST
from tfx_largeout.labels import Labels


class BackwardPass(NamedTuple):
    """The data of one backward pass that a head's step needs.

    Attributes:
        hidden: `[N, D]`.
        labels: N examples.
        residuals: The residuals that `forward` returned.
        gradients: The gradients of the loss with respect to each of the statistics.
    """

    hidden: tf.Tensor
    labels: Labels
    residuals: Any
    gradients: tuple[tf.Tensor, ...]

    def scaled(self, factor: Any) -> BackwardPass:
        """Returns the pass with the loss multiplied by a factor."""
        if isinstance(factor, float) and factor == 1:
            return self
        return self._replace(gradients=tuple(g * tf.cast(factor, g.dtype) for g in self.gradients))

    def without_what_is_not_finite(self) -> tuple[BackwardPass, tf.Tensor]:
        """Returns the pass and whether its gradients are finite; if not, all are set to 0."""
        flags = [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in self.gradients]
        is_finite = tf.reduce_all(tf.stack(flags))
        gradients = tuple(tf.where(is_finite, g, tf.zeros_like(g)) for g in self.gradients)
        return self._replace(gradients=gradients), is_finite


class KeptPasses:
    """The packed data of several backward passes, concatenated along the batch.

    A pass is a tuple of tensors `[N, ...]`; the first one is h, `[N, D]`. Passes with fewer labels
    or candidates than others are padded: integers with -1, floats with 0.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device(HOST):
            self.count = tf.Variable(0, trainable=False, dtype=tf.int64, name="kept_passes")
        self._parts: list[tf.Variable] = []

    @property
    def variables(self) -> list[tf.Variable]:
        """The number of passes, and their packed tensors."""
        return [self.count, *self._parts]

    @property
    def has_parts(self) -> bool:
        """Whether there ever was a pass to keep."""
        return bool(self._parts)

    def append(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Keeps a pass; returns all that are kept."""
        if [part.dtype for part in parts] != [variable.dtype for variable in self._parts]:
            # The first pass, or the first one with a different kind of loss.
            with tf.init_scope():
                self.count.assign(0)
                self._parts = [_empty(part, place == 0) for place, part in enumerate(parts)]
        pairs = zip(self._parts, parts, strict=True)
        kept = [
            (variable, under_each_other([variable.read_value(), part])) for variable, part in pairs
        ]
        return [*(variable.assign(rows) for variable, rows in kept), self.count.assign_add(1)]

    def clear(self) -> None:
        """Drops all passes."""
        for variable in self._parts:
            dims = (n or 0 for n in variable.shape[1:])
            variable.assign(tf.zeros([0, *dims], variable.dtype))
        self.count.assign(0)

    def take(self) -> list[tf.Tensor]:
        """Returns all passes and drops them."""
        parts = [variable.read_value() for variable in self._parts]
        with tf.control_dependencies(parts):
            self.clear()
        return parts


def under_each_other(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates tensors `[N_i, ...]`; narrower ones are padded: see `KeptPasses`."""
    if parts[0].shape.rank == 1:
        return tf.concat(parts, axis=0)
    widths = tf.reduce_max(tf.stack([tf.shape(part)[1:] for part in parts]), axis=0)

    def widened(part: tf.Tensor) -> tf.Tensor:
        missing = tf.concat([[0], widths - tf.shape(part)[1:]], axis=0)
        padding = tf.stack([tf.zeros_like(missing), missing], axis=1)
        return tf.pad(part, padding, constant_values=-1 if part.dtype.is_integer else 0)

    return tf.concat([widened(part) for part in parts], axis=0)


def _empty(part: tf.Tensor, has_width: bool) -> tf.Variable:
    dims = part.shape[1:].as_list() if has_width else [None] * (part.shape.rank - 1)
    return tf.Variable(
        tf.zeros([0, *(n or 0 for n in dims)], part.dtype),
        trainable=False,
        shape=[None, *dims],
        name="kept_pass",
    )
