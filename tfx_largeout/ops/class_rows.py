# SPDX-License-Identifier: Apache-2.0
"""ClassRows: the classes whose rows this process has, and results over all classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.distribute.workers import Workers
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits, top_candidates
from tfx_largeout.ops.exact.filtered_top_k import filtered_top_k
from tfx_largeout.ops.exact.mean_of_rows import mean_of_rows
from tfx_largeout.ops.exact.ranks_from_logits import best_pairs
from tfx_largeout.ops.exact.softmax_selection import SoftmaxSelection, least_weight
from tfx_largeout.ops.exact.streamed_logits import StreamedLogits, streamed_logits
from tfx_largeout.statistics import TopScores

_NO_LOGITS = (
    "a head whose classes are spread over workers has no logits of all classes, and can't run "
    "eagerly; use tlo.top_k_model for predictions, losses and metrics of this package within "
    "compile, or a tf.function of your own around model and metric"
)


class ClassRows:
    """The rows of W and b on this process, of the C classes of a head. A single process has all.

    `site` is the name of the head, for collectives.
    """

    def __init__(self, workers: Workers, num_classes: int, site: str) -> None:
        self.workers = workers
        self.num_classes = num_classes
        self.site = site
        self.shard = ClassShard(workers.rank, workers.size, num_classes)
        self.num_rows = self.shard.num_rows
        self.share = self.num_rows / num_classes

    def of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of classes; -1 for padding and for classes of other workers."""
        return self.shard.row_of(ids)

    def own(self, ids: tf.Tensor, *values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the candidates whose rows are on this worker, and their values.

        Args:
            ids: `[S]`: classes of other workers are left out. `[N, S]`: they become -1.
            *values: Like `ids`.
        """
        if self.shard.is_whole:
            return (ids, *values)
        here = self.of(ids) >= 0
        if ids.shape.rank == 1:
            return tuple(tf.boolean_mask(x, here) for x in (ids, *values))
        return (
            tf.where(here, ids, tf.constant(-1, ids.dtype)),
            *(tf.where(here, x, tf.zeros_like(x)) for x in values),
        )

    def of_owners(self, ids: tf.Tensor, values: tf.Tensor, name: str) -> tf.Tensor:
        """Returns values `[N, K, ...]` of classes `[N, K]` from the workers with their rows.

        With several workers they are 0 at padding.
        """
        if self.shard.is_whole:
            return values
        shape = tf.concat([tf.shape(ids), tf.ones([tf.rank(values) - 2], tf.int32)], axis=0)
        here = tf.reshape(self.of(ids) >= 0, shape)
        values = tf.where(here, values, tf.zeros_like(values))
        return self.workers.sum(values, f"{self.site}/{name}")

    def mean(self, variable: Any) -> tf.Tensor:
        """Returns the mean over all classes of W or b, from the rows on this worker."""
        mean = mean_of_rows(variable)
        if self.shard.is_whole:
            return mean
        return self.workers.sum(self.share * mean, f"{self.site}/mean_of_rows")

    def all_logits(
        self, logits: Callable[[], tf.Tensor], hidden: tf.Tensor, dtype: str
    ) -> tf.Tensor:
        """Returns logits `[N, C]`, in a single process.

        With several workers no worker has them, and reading them raises an error. TensorFlow prunes
        an unused tensor from a graph.
        """
        if self.shard.is_whole:
            return logits()

        def refuse(_: Any) -> Any:
            raise RuntimeError(_NO_LOGITS)

        if tf.executing_eagerly():
            refuse(hidden)
        nothing = tf.numpy_function(refuse, [tf.shape(hidden)], tf.as_dtype(dtype), stateful=False)
        return tf.ensure_shape(nothing, [hidden.shape[0], self.num_classes])

    def thinned(
        self, selection: SoftmaxSelection, log_z: tf.Tensor, num_selected: int
    ) -> SoftmaxSelection:
        """Returns the entries that log Z of all classes keeps, from those kept by these rows."""
        if self.shard.is_whole:
            return selection
        return selection.thinned(log_z, least_weight(num_selected, self.num_classes))

    def exact(self, hidden: tf.Tensor, kernel: Any, bias: Any, labels: tf.Tensor) -> StreamedLogits:
        """Returns exact statistics over all classes, without the best ones: as `streamed_logits`.

        Args:
            hidden: `[N, D]`, the same on all workers.
            kernel: The rows of W on this worker.
            bias: The rows of b, or None.
            labels: `[N, K]` ids, the same on all workers.
        """
        if self.shard.is_whole:
            return streamed_logits(hidden, kernel, bias, labels, k=0)
        wide = tf.cast(hidden, tf.float64 if kernel.dtype == "float64" else tf.float32)
        none = tf.zeros([0], tf.int64)
        here = candidate_logits(kernel, bias, wide, self.of(labels), none).true_logits
        name = f"{self.site}/exact"
        targets = self._sum_if_any(here, f"{name}_targets")
        own = streamed_logits(
            hidden, kernel, bias, labels, k=0, target_scores=targets, shard=self.shard
        )
        above = self._sum_if_any(tf.maximum(own.target_ranks, 0), f"{name}_ranks")
        return own._replace(
            logsumexp=self.workers.log_sum_exp(own.logsumexp, f"{name}_log_sum"),
            target_logits=targets,
            target_ranks=tf.where(labels >= 0, above, -1),
        )

    def best(
        self,
        hidden: tf.Tensor,
        kernel: Any,
        bias: Any,
        k: int,
        allowed: ClassFilter | None = None,
    ) -> TopScores:
        """Returns the k best of all classes, ties by lower id: as `streamed_logits`.

        With a filter (the same on all workers), only allowed classes: as `filtered_top_k`.

        Args and cost: as `exact`; R k numbers per example are gathered.
        """
        few = min(k, self.num_rows)
        if allowed is None:
            none = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
            all_of_it = streamed_logits(hidden, kernel, bias, none, k=few, shard=self.shard)
            own = TopScores(all_of_it.top_scores, all_of_it.top_ids, all_of_it.logsumexp)
        else:
            if allowed.groups is not None:
                allowed = allowed._replace(groups=self.shard.own(allowed.groups))
            own = filtered_top_k(hidden, kernel, bias, few, allowed, shard=self.shard)
        logsumexp = self.workers.log_sum_exp(own.log_partition, f"{self.site}/top_log_sum")
        if k == 0 or self.shard.is_whole:
            return own._replace(log_partition=logsumexp)
        return TopScores(*self._best_of_all(own.scores, own.ids, k), logsumexp)

    def bias_of_allowed(self, kernel: Any, bias: Any, groups: tf.Tensor) -> tf.Tensor:
        """Returns b of this worker's rows, -inf for a class whose group (in `[C]`) is below 0."""
        dtype = tf.as_dtype(kernel.dtype)
        own = tf.zeros([self.num_rows], dtype) if bias is None else tf.convert_to_tensor(bias)
        lowest = tf.constant(float("-inf"), dtype)
        return tf.where(self.shard.own(groups) < 0, lowest, own)

    def best_of(
        self, hidden: tf.Tensor, kernel: Any, bias: Any, ids: tf.Tensor, k: int
    ) -> TopScores:
        """Returns each example's k best, k >= 1, of given classes: as `top_candidates`.

        They are `[N, S]`, distinct: classes whose rows are on this worker, and -1.
        """
        if self.shard.is_whole:
            return top_candidates(kernel, bias, hidden, ids, k)
        own = top_candidates(kernel, bias, hidden, self.of(ids), min(k, ids.shape[1]))
        own_ids = tf.where(own.ids >= 0, self.shard.class_of(own.ids), -1)
        return TopScores(
            *self._best_of_all(own.scores, own_ids, k),
            self.workers.log_sum_exp(own.log_partition, f"{self.site}/found_log_sum"),
        )

    def _best_of_all(
        self, scores: tf.Tensor, ids: tf.Tensor, k: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Merges up to k classes of each worker to the k best `[N, k]`.

        If there are fewer, they are padded with -inf and -1, in input and result.
        """
        ids = tf.where(ids < 0, tf.constant(self.num_classes, tf.int64), ids)
        # Padding comes last, if this worker has fewer than k.
        missing = [[0, 0], [0, k - scores.shape[1]]]
        lowest = scores.dtype.as_numpy_dtype("-inf")
        scores = tf.pad(scores, missing, constant_values=lowest)
        ids = tf.pad(ids, missing, constant_values=self.num_classes)
        scores = _side_by_side(self.workers.gather(scores, f"{self.site}/top_scores"))
        ids = _side_by_side(self.workers.gather(ids, f"{self.site}/top_ids"))
        scores, ids = best_pairs(scores, ids, k)
        return scores, tf.where(ids < self.num_classes, ids, tf.constant(-1, tf.int64))

    def _sum_if_any(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers of `[N, K]`, where K may be 0."""
        padded = self.workers.sum(tf.pad(x, [[0, 0], [0, 1]]), name)
        return padded[:, :-1]


def _side_by_side(parts: tf.Tensor) -> tf.Tensor:
    """Returns `[N, R k]` of `[R, N, k]`."""
    size, k = parts.shape[0], parts.shape[2]
    return tf.reshape(tf.transpose(parts, [1, 0, 2]), [-1, size * k])
