# SPDX-License-Identifier: Apache-2.0
"""The global batch: the examples of all workers, on each of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.distribute.meeting import meet
from tfx_largeout.distribute.workers import Workers

_MINUS_ZERO = {tf.float32: (tf.int32, tf.int32.min), tf.float64: (tf.int64, tf.int64.min)}


class GlobalBatch(NamedTuple):
    """The examples of all workers, by rank. N is their number.

    Attributes:
        hidden: `[N, D]`, with a gradient.
        label_ids: `[N, K]` int64, padded with -1.
        weights: `[N]`, or None.
        mask: `[N]` bool, or None.
        own: `[n]` int64, where the examples of this worker stand; None: they are all there are.
    """

    hidden: tf.Tensor
    label_ids: tf.Tensor
    weights: tf.Tensor | None
    mask: tf.Tensor | None
    own: tf.Tensor | None

    def of_this_worker(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the part of `values` `[N, ...]` that belongs to this worker's examples."""
        return values if self.own is None else tf.gather(values, self.own)


def gather_examples(
    workers: Workers,
    site: str,
    phase: int,
    step: Any,
    hidden: tf.Tensor,
    label_ids: tf.Tensor,
    weights: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
) -> GlobalBatch:
    """Gathers examples. Two collectives: where all are, and then everything in one tensor.

    The parts may be of any sizes, 0 included. Examples whose weight is -0.0 were added by `shard`
    to make parts equal, and are left out. The gradient of h is summed over workers, each of which
    gets its own part, times R: `DataParallel` takes the mean of gradients over workers.

    Args:
        workers: More than one.
        site: As `meet`.
        phase: As `meet`.
        step: As `meet`.
        hidden: `[n, D]`, float32 or float64.
        label_ids: `[n, K]` int64, padded with -1; K may differ between workers.
        weights: `[n]`, on all workers or on none.
        mask: `[n]` bool, likewise.
    """
    width = hidden.shape[1]
    rows, num_labels = tf.shape(hidden, tf.int64)[0], tf.shape(label_ids, tf.int64)[1]
    form = 2 * (weights is not None) + (mask is not None)
    heard = meet(workers, phase, site, step, form, [rows, num_labels])
    most_labels = tf.reduce_max(heard[:, 1])
    ids = tf.pad(label_ids, [[0, 0], [0, most_labels - num_labels]], constant_values=-1)

    columns = [tf.stop_gradient(hidden)]
    columns += [tf.cast(x, hidden.dtype)[:, tf.newaxis] for x in (weights, mask) if x is not None]
    columns.append(_bits(ids, hidden.dtype))
    parts = Parts(workers, heard[:, 0])
    every = parts.gathered(tf.concat(columns, axis=1), f"{site}/examples")
    all_weights = all_mask = None
    if weights is not None:
        real = tf.where(~is_minus_zero(every[:, width]))[:, 0]
        every = tf.gather(every, real)
        parts.keep(real)
        all_weights = every[:, width]
    if mask is not None:
        all_mask = every[:, width + (weights is not None)] != 0
    bits = every[:, width + (weights is not None) + (mask is not None) :]

    @tf.custom_gradient
    def everywhere(hidden: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            upstream = tf.ensure_shape(upstream, [None, width])
            own = parts.sum_of_own(upstream, f"{site}/hidden_gradient")
            return own * tf.constant(workers.size, hidden.dtype)

        return tf.ensure_shape(every[:, :width], [None, width]), gradient

    return GlobalBatch(
        everywhere(hidden), _ids(bits, most_labels), all_weights, all_mask, parts.own
    )


class Parts:
    """Where the examples of the workers stand, when parts are padded to the size of the largest.

    Args:
        workers: More than one.
        sizes: `[R]` int64: how many examples each has.
    """

    def __init__(self, workers: Workers, sizes: tf.Tensor) -> None:
        self._workers = workers
        self._rows = sizes[workers.rank]
        # A collective of nothing would end the process.
        self._capacity = tf.maximum(tf.reduce_max(sizes), 1)
        places = tf.where(tf.sequence_mask(sizes, self._capacity))
        self._places = places[:, 0] * self._capacity + places[:, 1]

    @property
    def ranks(self) -> tf.Tensor:
        """`[N]` int64: whose each example is that is kept."""
        return self._places // self._capacity

    @property
    def own(self) -> tf.Tensor:
        """Where, among the examples that are kept, those of this worker stand."""
        return tf.where(tf.equal(self.ranks, self._workers.rank))[:, 0]

    def keep(self, real: tf.Tensor) -> None:
        """Leaves out all examples but those at some places."""
        self._places = tf.gather(self._places, real)

    def gathered(self, own: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the rows of all workers, `[N, ...]`, of those of this one."""
        padded = tf.pad(own, [[0, self._capacity - self._rows], [0, 0]])
        every = self._workers.gather(padded, name)
        shape = tf.stack([self._workers.size * self._capacity, tf.shape(padded, tf.int64)[1]])
        return tf.gather(tf.reshape(every, shape), self._places)

    def sum_of_own(self, every: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers of rows `[N, D]`, this worker's part, 0 where left out."""
        size, width = self._workers.size, every.shape[1]
        shape = tf.stack([size * self._capacity, tf.constant(width, tf.int64)])
        padded = tf.scatter_nd(self._places[:, tf.newaxis], every, shape)
        padded = tf.reshape(padded, tf.stack([size, self._capacity, width]))
        padded = tf.ensure_shape(padded, [size, None, width])
        return self._workers.sum_of_own(padded, name)[: self._rows]


def _bits(ids: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns int64 ids `[n, K]` as floats of the same bits, which nothing computes with."""
    shape = tf.shape(ids)
    return tf.reshape(tf.bitcast(ids, dtype), [shape[0], shape[1] * (8 // dtype.size)])


def _ids(bits: tf.Tensor, num_labels: tf.Tensor) -> tf.Tensor:
    """Undoes `_bits`."""
    shape = tf.stack([tf.shape(bits, tf.int64)[0], num_labels])
    if bits.dtype == tf.float32:
        bits = tf.reshape(bits, tf.concat([shape, [2]], axis=0))
    return tf.reshape(tf.bitcast(bits, tf.int64), shape)


def is_minus_zero(x: tf.Tensor) -> tf.Tensor:
    """Says which of some weights are those of examples that `shard` has added."""
    integer, pattern = _MINUS_ZERO[x.dtype]
    return tf.equal(tf.bitcast(x, integer), tf.constant(pattern, integer))
