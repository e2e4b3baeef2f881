# SPDX-License-Identifier: Apache-2.0
"""ReplicatedRows: rows of W and b that several workers hold, and that stay equal."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.meeting import check_same_bits, sum_of_bits
from tfx_largeout.distribute.workers import Workers
from tfx_largeout.ops.candidates.candidate_gradients import GradientSums
from tfx_largeout.ops.candidates.row_gradients import RowGradients
from tfx_largeout.ops.rows.variable_rows import bare_variable, gather, scatter_update

_BLOCK = 2**22  # numbers that are compared at a time
_LOOKED_AT = 64  # rows that are compared in a step
_UNUSED = 16  # at most 1/16 of the bytes sent is padding


class ReplicatedRows:
    """Rows of W and b that several workers hold, each with gradients by a part of the batch.

    Args:
        workers: The workers that hold these rows, more than one.
        kernel: The variable of W.
        bias: The variable of b, or None.
        site: The name of the head.

    Attributes:
        sums: For `candidate_gradients`.
    """

    def __init__(self, workers: Workers, kernel: Any, bias: Any, site: str) -> None:
        self._workers, self._site = workers, site
        self._weights = [bare_variable(w) for w in (kernel, bias) if w is not None]
        self.sums = GradientSums(kernel, bias)

    def start_alike(self) -> None:
        """Copies the rows of the first worker to all others. Runs eagerly.

        Cost: one pass over the rows; only blocks that differ are sent.
        """
        for weight in self._weights:
            size = max(_BLOCK // max(weight.shape[1:].num_elements(), 1), 1)
            starts = range(0, weight.shape[0], size)
            blocks = [
                tf.range(at, min(at + size, weight.shape[0]), dtype=tf.int64) for at in starts
            ]
            bits = tf.stack([sum_of_bits(gather(weight, ids), 0) for ids in blocks])
            heard = self._workers.gather(bits, f"{self._site}/start").numpy()
            for place in (heard != heard[0]).any(axis=0).nonzero()[0]:
                rows = self._workers.first(gather(weight, blocks[place]), f"{self._site}/start")
                scatter_update(weight, blocks[place], rows)

    def sum_of_some(self, found: RowGradients, step: Any) -> RowGradients:
        """Returns the sums of gradients of the rows that any of the workers touches.

        Three collectives: the number of rows of each worker, their ids, and the sums. With the
        first one the workers compare 64 rows of W, other ones in each step.

        Args:
            found: The gradients of this worker.
            step: The number of the step.

        Raises:
            tf.errors.InvalidArgumentError: Rows of W differ. Raised on all workers.
        """
        number = tf.shape(found.ids, tf.int64)[0]
        looked_at = _LOOKED_AT * tf.cast(step, tf.int64) + tf.range(_LOOKED_AT, dtype=tf.int64)
        rows = gather(self._weights[0], looked_at % self._weights[0].shape[0])
        said = tf.stack([number, sum_of_bits(rows, 0)])
        heard = self._workers.gather(said, f"{self._site}/row_counts")
        with tf.control_dependencies(self._check_alike(heard[:, 1])):
            missing = [[0, tf.maximum(tf.reduce_max(heard[:, 0]), 1) - number]]
        own = tf.cast(found.ids, tf.int32)
        every = self._workers.gather(
            tf.pad(own, missing, constant_values=-1), f"{self._site}/row_ids"
        )
        named = tf.unique(tf.sort(tf.boolean_mask(every, every >= 0))).y
        places = tf.searchsorted(named, own, out_type=tf.int64)[:, tf.newaxis]
        number = tf.size(named, tf.int64)
        capacity = _capacity(number)
        kernel = tf.scatter_nd(places, found.kernel, tf.stack([capacity, found.kernel.shape[1]]))
        bias = tf.scatter_nd(places, found.bias, [capacity])
        found = self.sum_of_all(found._replace(kernel=kernel, bias=bias))
        ids = tf.cast(named, tf.int64)
        return found._replace(ids=ids, kernel=found.kernel[:number], bias=found.bias[:number])

    def sum_of_all(self, found: RowGradients) -> RowGradients:
        """Returns the sums of gradients, if all workers touch the same rows in the same order."""
        parts = [found.kernel, found.bias][: len(self._weights)]
        flat = tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)
        flat = self._workers.sum_of_gradients(flat, f"{self._site}/row_gradients")
        kernel, bias = tf.split(
            flat, [tf.size(found.kernel), tf.size(flat) - tf.size(found.kernel)]
        )
        kernel = tf.ensure_shape(tf.reshape(kernel, tf.shape(found.kernel)), found.kernel.shape)
        return found._replace(kernel=kernel, bias=bias)

    def _check_alike(self, bits: tf.Tensor) -> list[tf.Operation]:
        rule = (
            "rows of W of the head must be the same on all workers that have the same classes; got "
            "sums of the bits of some rows by group"
        )
        return check_same_bits(bits, [rule, bits, f"in {self._site!r}."])


def _capacity(number: tf.Tensor) -> tf.Tensor:
    """Returns a size of at least this number: one of few, as TensorFlow keeps each shape sent."""
    unit = tf.maximum(tf.cast(number, tf.float64) / _UNUSED, 1)
    unit = tf.cast(
        2 ** tf.floor(tf.math.log(unit) / tf.math.log(tf.constant(2.0, unit.dtype))), tf.int64
    )
    return tf.maximum((number + unit - 1) // unit * unit, 1)
