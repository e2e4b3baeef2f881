# SPDX-License-Identifier: Apache-2.0
"""The global batch: the examples of all workers, gathered on each worker.

With groups of workers it is the batch of a group.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.devices import on_host
from tfx_largeout.distribute.meeting import TRAIN, meet
from tfx_largeout.distribute.packed_numbers import packed, unpacked
from tfx_largeout.distribute.workers import Workers

_MINUS_ZERO = {tf.float32: (tf.int32, tf.int32.min), tf.float64: (tf.int64, tf.int64.min)}


class GlobalBatch(NamedTuple):
    """The N examples of all workers, by rank."""

    hidden: tf.Tensor  # [N, D], with a gradient
    label_ids: tf.Tensor  # [N, K] int64, padded with -1
    weights: tf.Tensor | None  # [N]
    mask: tf.Tensor | None  # [N] bool
    own: tf.Tensor | None  # [n], the places of this worker's examples; None: all
    label_values: tf.Tensor | None = None  # [N, K], of the dtype of h
    parts: Parts | None = None  # whose each example is

    def of_this_worker(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the part of `values` `[N, ...]` that belongs to this worker's examples."""
        return values if self.own is None else tf.gather(values, self.own)


class GatheredLabels(NamedTuple):
    """The data of all workers' N examples that each worker holds, ordered by rank."""

    label_ids: tf.Tensor  # [N, K] int64, padded with -1; K is at least 1
    weights: tf.Tensor | None  # [N] float64
    mask: tf.Tensor | None  # [N] bool
    parts: Parts  # the worker of each example
    kept: tf.Tensor | None  # [n], the rows of this worker that are examples; None: all
    label_values: tf.Tensor | None  # [N, K] float64


def gather_examples(
    workers: Workers,
    site: str,
    phase: int,
    step: Any,
    hidden: tf.Tensor,
    label_ids: tf.Tensor,
    weights: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    label_values: tf.Tensor | None = None,
) -> GlobalBatch:
    """Gathers examples, in two collectives: a meeting, then all data in one tensor.

    The parts may have any sizes, 0 included. Examples of weight -0.0, which `shard` adds to make
    parts equal, are left out. (A group of workers without examples gets an example of no worker,
    which `Parts.of_all_groups` leaves out.) The gradient of h is summed over workers, and each
    worker gets its part times the number of all workers: `DataParallel` averages gradients over
    them.

    `site`, `phase` and `step` are as in `meet`; h is float32 or float64. Other arguments are as in
    `GlobalBatch`: given on all workers or on none, with any K. A single process gets its arguments
    back.
    """
    if workers.alone:
        return GlobalBatch(hidden, label_ids, weights, mask, None, label_values)
    sent = tf.stop_gradient(hidden)
    of_labels = label_ids, weights, mask, label_values
    found, parts, real = _gathered(workers, site, (phase, step), sent, *of_labels)
    every, label_ids, weights, mask, label_values = found
    if real is not None:
        parts.keep(real)

    @tf.custom_gradient
    def everywhere(hidden: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            upstream = tf.ensure_shape(upstream, [None, hidden.shape[1]])
            own = parts.sum_of_own(upstream, f"{site}/hidden_gradient")
            return own * tf.constant(workers.everyone.size, hidden.dtype)

        return tf.identity(every), gradient

    every = everywhere(hidden)
    return GlobalBatch(every, label_ids, weights, mask, parts.own, label_values, parts)


@on_host
def gather_labels(
    workers: Workers,
    site: str,
    phase: int,
    step: Any,
    label_ids: tf.Tensor,
    weights: Any,
    mask: Any,
    label_values: Any,
) -> GatheredLabels:
    """Does the same as `gather_examples` for several workers, but does not send h."""
    no_hidden = tf.zeros([tf.shape(label_ids)[0], 0], tf.float64)
    of_labels = label_ids, weights, mask, label_values
    found, parts, real = _gathered(workers, site, (phase, step), no_hidden, *of_labels)
    kept = None
    if real is not None:
        kept = tf.where(tf.gather(real, parts.own))[:, 0]
        ranks = tf.boolean_mask(parts.ranks, real)
        sizes = tf.math.unsorted_segment_sum(tf.ones_like(ranks), ranks, workers.size)
        parts = Parts(workers, sizes)
    _, label_ids, weights, mask, label_values = found
    return GatheredLabels(label_ids, weights, mask, parts, kept, label_values)


@on_host
def _gathered(
    workers: Workers,
    site: str,
    when: tuple[int, Any],
    hidden: tf.Tensor,
    label_ids: tf.Tensor,
    weights: tf.Tensor | None,
    mask: tf.Tensor | None,
    label_values: tf.Tensor | None,
) -> tuple[tuple[Any, ...], Parts, tf.Tensor | None]:
    """Returns all h, label ids, weights, masks and values; their workers; and the rows kept.

    All data is sent as integers of the same bits; in training h is sent in `wire_dtype`.
    """
    width, dtype = hidden.shape[1], hidden.dtype
    sent = workers.sent_dtype(dtype) if when[0] == TRAIN else dtype
    rows, num_labels = tf.unstack(tf.shape(label_ids, tf.int64))
    form = 4 * (label_values is not None) + 2 * (weights is not None) + (mask is not None)
    heard = meet(workers.everyone, when[0], site, when[1], form, [rows, num_labels])
    of_groups = tf.reshape(heard, [-1, workers.size, 2])
    heard = of_groups[workers.replicas.rank]
    most = tf.reduce_max(heard[:, 1])
    if width == 0:
        most = tf.maximum(most, 1)  # a collective needs something to send
    columns = [packed(hidden, sent)]
    if weights is not None:
        columns.append(packed(weights[:, tf.newaxis], dtype))
    if mask is not None:
        columns.append(tf.cast(mask, tf.int32)[:, tf.newaxis])
    ends = list(itertools.accumulate((column.shape[1] for column in columns), initial=0))
    missing = [[0, 0], [0, most - num_labels]]
    columns.append(packed(tf.pad(label_ids, missing, constant_values=-1), tf.int64))
    if label_values is not None:
        columns.append(packed(tf.pad(label_values, missing), dtype))

    most_of_group = tf.reduce_max(tf.reduce_sum(of_groups[:, :, 0], axis=1))
    parts = Parts(workers, heard[:, 0], most_of_group)
    every = parts.gathered(tf.concat(columns, axis=1), f"{site}/examples")
    real = all_weights = all_mask = all_values = None
    if weights is not None:
        all_weights = unpacked(every[:, ends[1] : ends[2]], dtype)[:, 0]
        real = parts.leave_one(~_is_minus_zero(all_weights))
        every, all_weights = (tf.boolean_mask(x, real) for x in (every, all_weights))
    if mask is not None:
        all_mask = every[:, ends[-2]] != 0
    all_hidden = tf.cast(unpacked(every[:, : ends[1]], sent)[:, :width], dtype)
    all_hidden = tf.ensure_shape(all_hidden, [None, width])
    first_value = ends[-1] + 2 * most
    all_ids = unpacked(every[:, ends[-1] : first_value], tf.int64)
    if label_values is not None:
        all_values = unpacked(every[:, first_value:], dtype)
    return (all_hidden, all_ids, all_weights, all_mask, all_values), parts, real


class Parts:
    """The places of each worker's examples when parts are padded to the largest size.

    Args:
        workers: More than one.
        sizes: `[R]` int64: the number of examples per worker.
        most: At least the number of examples of each group. Default: not for `of_all_groups`.
    """

    @on_host
    def __init__(self, workers: Workers, sizes: tf.Tensor, most: tf.Tensor | None = None) -> None:
        self._workers, self._most = workers, most
        self._rows = sizes[workers.rank]
        self._is_empty = tf.constant(False)  # no example, except for one of no worker
        if not workers.replicas.alone:
            self._is_empty = tf.reduce_sum(sizes) == 0
            one = tf.one_hot(0, workers.size, dtype=tf.int64)
            sizes = tf.where(self._is_empty, one, sizes)
        # A collective of an empty tensor would kill the process.
        self._capacity = tf.maximum(tf.reduce_max(sizes), 1)
        places = tf.where(tf.sequence_mask(sizes, self._capacity))
        self._places = places[:, 0] * self._capacity + places[:, 1]

    @classmethod
    def even(cls, workers: Workers, number: tf.Tensor) -> Parts:
        """Returns parts, whose sizes differ by at most 1, of examples that all workers have."""
        ranks = tf.range(workers.size, dtype=tf.int64)
        return cls(workers, (tf.cast(number, tf.int64) + workers.size - 1 - ranks) // workers.size)

    @property
    @on_host
    def ranks(self) -> tf.Tensor:
        """`[N]` int64: the worker of each kept example."""
        return self._places // self._capacity

    @property
    @on_host
    def own(self) -> tf.Tensor:
        """The places of this worker's examples among the kept examples."""
        here = tf.equal(self.ranks, self._workers.rank)
        return tf.where(here & ~self._is_empty)[:, 0]

    @on_host
    def leave_one(self, real: tf.Tensor) -> tf.Tensor:
        """Returns which examples are real; the first one, if none of a group of workers is."""
        if self._workers.replicas.alone:
            return real
        none = ~tf.reduce_any(real)
        self._is_empty |= none
        return real | (none & tf.equal(tf.range(tf.size(real)), 0))

    @on_host
    def keep(self, real: tf.Tensor) -> None:
        """Keeps only the real examples, `[N]` bool."""
        self._places = tf.boolean_mask(self._places, real)

    def gathered(self, own: tf.Tensor, name: str) -> tf.Tensor:
        """Gathers the rows of all workers, `[N, ...]`, from each worker's rows."""
        padded = tf.pad(own, [[0, self._capacity - self._rows], [0, 0]])
        every = self._workers.gather(padded, name)
        shape = tf.stack([self._workers.size * self._capacity, tf.shape(padded, tf.int64)[1]])
        return tf.gather(tf.reshape(every, shape), self._places)

    def of_all_groups(
        self, columns: Sequence[tf.Tensor | None], name: str
    ) -> list[tf.Tensor | None]:
        """Gathers numbers or flags of the examples of all groups from each group.

        The examples are in the order of the groups. The first column has a gradient. Without groups
        the columns are returned as they are.

        Cost: one collective.

        Args:
            columns: Each `[N]`, or None, which is returned as None.
            name: As of any collective.
        """
        replicas = self._workers.replicas
        if replicas.alone:
            return list(columns)
        given = [column for column in columns if column is not None]
        wide = tf.float64 if any(x.dtype == tf.float64 for x in given) else tf.float32
        number = tf.shape(given[0], tf.int64)[0]
        is_real = tf.fill([number], tf.cast(~self._is_empty, wide))
        table = tf.stack([*(tf.cast(x, wide) for x in given), is_real], axis=1)
        missing = [[0, tf.maximum(self._most, 1) - number], [0, 0]]
        every = replicas.gather(tf.pad(tf.stop_gradient(table), missing), name)
        is_real = every[:, :, -1] != 0
        ends = tf.cumsum(tf.math.count_nonzero(is_real, axis=1))
        end, length = ends[replicas.rank], tf.math.count_nonzero(is_real[replicas.rank])
        rows = tf.boolean_mask(every, is_real)
        found = [tf.cast(rows[:, at], x.dtype) for at, x in enumerate(given)]

        @tf.custom_gradient
        def with_own_part(x: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                return tf.pad(upstream[end - length : end], [[0, number - length]])

            return tf.identity(found[0]), gradient

        of_all = iter([with_own_part(given[0]), *found[1:]])
        return [None if column is None else next(of_all) for column in columns]

    def sum_of_own(self, every: tf.Tensor, name: str) -> tf.Tensor:
        """Returns this worker's part of the sum of rows `[N, D]` over workers; 0 where left out."""
        size, width = self._workers.size, every.shape[1]
        shape = tf.stack([size * self._capacity, tf.constant(width, tf.int64)])
        padded = tf.scatter_nd(self._places[:, tf.newaxis], every, shape)
        padded = tf.reshape(padded, tf.stack([size, self._capacity, width]))
        padded = tf.ensure_shape(padded, [size, None, width])
        return self._workers.sum_of_own(padded, name)[: self._rows]


def _is_minus_zero(x: tf.Tensor) -> tf.Tensor:
    """Returns which weights belong to examples that `shard` has added."""
    integer, pattern = _MINUS_ZERO[x.dtype]
    return tf.equal(tf.bitcast(x, integer), tf.constant(pattern, integer))
