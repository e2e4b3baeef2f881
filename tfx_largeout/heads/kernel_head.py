# SPDX-License-Identifier: Apache-2.0
"""KernelHead: the base of heads that store W and b as plain weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import full_name
from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.distribute.class_shard import mark_as_shard
from tfx_largeout.heads.dense_weights import DenseWeights
from tfx_largeout.heads.over_workers import whole_hidden
from tfx_largeout.labels import Labels
from tfx_largeout.memory import StepMemory, StepSize, Weight, gradients_of
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.exact.shared_gradient import CandidateGradients
from tfx_largeout.ops.exact.soft_cap import soft_capped, soft_capped_sums
from tfx_largeout.ops.rows.row_blocks import (
    bytes_of_blocks,
    initial_values,
    initialize_by_blocks,
)
from tfx_largeout.statistics import ExactStatistics, TopScores


def dense_logits(hidden: tf.Tensor, kernel: Any, bias: Any, dtype: str) -> tf.Tensor:
    """Returns h W^T + b, `[N, C]`, computed in a dtype; `bias` may be None."""
    logits = tf.matmul(tf.cast(hidden, dtype), tf.cast(kernel, dtype), transpose_b=True)
    return logits if bias is None else logits + tf.cast(bias, dtype)


class KernelHead(DenseWeights):
    """A head with the weights W `[C, D]` (a row per class, as in `tf.nn`) and b `[C]`.

    It has the logits, the exact evaluation and top-k; subclasses define training. Its arguments are
    as in `DenseHead`.

    Cost: evaluation O(B C D) time, memory independent of C beyond the weights.
    """

    # Whether the model's optimizer updates W and b.
    trainable_kernel: ClassVar[bool] = True
    # If set, the logits are cap tanh((W h + b) / cap). Only for heads in one process.
    soft_cap: float | None = None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.rows = ClassRows(self.workers, self.num_classes, self.name)
        self.add_kernel()
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.rows.num_rows,),
                initializer=self._initial_bias,
                trainable=self.trainable_kernel,
                autocast=False,
            )
        for weight in (self.kernel, self.bias):
            if weight is not None:
                mark_as_shard(weight, self.rows.shard)

    def add_kernel(self) -> None:
        """Adds W to the weights."""
        # No autocast: it would cast all of W wherever a few rows are gathered.
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.rows.num_rows, self.width),
            initializer=self._initial_kernel,
            trainable=self.trainable_kernel,
            autocast=False,
        )

    def weights_of(self, width: int, workers: int = 1) -> list[Weight]:
        rows, dtype = -(-self.num_classes // workers), self.variable_dtype
        shapes = [(rows, width), (rows,)] if self.use_bias else [(rows, width)]
        is_trained = self.trainable_kernel and self.trainable
        return [Weight(shape, dtype, is_trained=is_trained) for shape in shapes]

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """As `Head`; only gradients of W and b: a subclass adds the rest of its training step.

        Evaluation: packed h, and the state of each thread for each example and label.
        """
        weights = self.weights_of(width, workers)
        of_example = 4 * width + 16 * 256 + step.threads * (8 * step.labels + 8)
        return StepMemory(
            gradients=gradients_of(weights),
            evaluation=step.examples * of_example,
            building=bytes_of_blocks(weights[0]),
        )

    def flat_logits(self, hidden: tf.Tensor, dtype: str) -> tf.Tensor:
        def logits() -> tf.Tensor:
            kernel = self.differentiable_kernel
            return soft_capped(dense_logits(hidden, kernel, self.bias, dtype), self.soft_cap)

        return self.rows.all_logits(logits, hidden, dtype)

    @property
    def differentiable_kernel(self) -> Any:
        """W `[C, D]` for the logits of a training step by the model's optimizer."""
        return self.kernel

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind is not ExactStatistics:
            return super().statistics(kind, hidden, labels, training)
        exact = self.rows.exact(hidden, self.kernel, self.bias, labels.ids)
        targets = soft_capped(exact.target_logits, self.soft_cap)
        log_partition = self._log_partition(exact.logsumexp, hidden)
        return ExactStatistics(labels, targets, log_partition, exact.target_ranks)

    def step_and_draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the seed of the present step's draws: see `seed_of_step`."""
        raise NotImplementedError

    def row_gradients(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
    ) -> CandidateGradients:
        """Returns the rows that a training step touches, and their gradients.

        Arguments as in a `BackwardPass`.
        """
        raise NotImplementedError

    def mean_logit(self, hidden: tf.Tensor) -> tf.Tensor:
        """As `Head`; h Wbar + bbar, with the means of the rows. Cost: O(C D + N D)."""
        if self.soft_cap is not None:
            return soft_capped_sums(self._wide(hidden), self.kernel, self.bias, self.soft_cap)[1]
        return self._mean_logit_by(self.rows.mean(self.kernel), hidden)

    def _mean_logit_by(self, mean_kernel: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        """As `mean_logit`, with the mean of the rows of W, `[D]`."""
        mean = tf.linalg.matvec(tf.cast(hidden, self.statistics_dtype), mean_kernel)
        return mean if self.bias is None else mean + self.rows.mean(self.bias)

    def top_k(
        self,
        hidden: tf.Tensor,
        k: int,
        allowed: ClassFilter | None = None,
        temperature: Any = None,
    ) -> TopScores:
        batch, allowed = whole_hidden(self, hidden, allowed)
        bias = self.bias
        if temperature is not None:
            self.refuse_soft_cap("a temperature")
            wide = self._wide(batch.hidden)
            batch = batch._replace(hidden=wide / tf.cast(temperature, wide.dtype))
            if bias is not None:
                bias = tf.convert_to_tensor(bias)
                bias = tf.cast(
                    tf.cast(bias, wide.dtype) / tf.cast(temperature, wide.dtype), bias.dtype
                )
        exact = self.rows.best(batch.hidden, self.kernel, bias, k, allowed)
        scores = soft_capped(exact.scores, self.soft_cap)
        if allowed is not None:
            scores = tf.where(exact.ids < 0, exact.scores, scores)  # -inf for no class
        top = (scores, exact.ids, self._log_partition(exact.log_partition, batch.hidden))
        return TopScores(*(batch.of_this_worker(values) for values in top))

    def allowed_ranks(self, hidden: tf.Tensor, ids: tf.Tensor, groups: tf.Tensor) -> tf.Tensor:
        bias = self.rows.bias_of_allowed(self.kernel, self.bias, groups)
        return self.rows.exact(hidden, self.kernel, bias, ids).target_ranks

    def best_found(
        self,
        hidden: tf.Tensor,
        find: Callable[[tf.Tensor], tf.Tensor],
        k: int,
        allowed: ClassFilter | None,
    ) -> TopScores:
        """Returns the k classes with the highest exact logits among the classes from `find`.

        Args:
            hidden: `[N, D]`.
            find: Takes h of the examples of all workers, `[N, D]` float32; returns classes `[N,
                S]`, padded with -1; with several workers only classes whose rows are on this one.
            k: The number of classes. Where fewer are found, -inf and -1 follow.
            allowed: The classes that each example may find; None: all.
        """
        batch, allowed = whole_hidden(self, hidden, allowed)
        found = find(tf.cast(batch.hidden, tf.float32))
        if allowed is not None:
            found = tf.cast(found, tf.int64)
            found = tf.where(allowed.hides(found), tf.constant(-1, tf.int64), found)
        best = self.rows.best_of(batch.hidden, self.kernel, self.bias, found, k)
        return TopScores(*map(batch.of_this_worker, best))

    def _log_partition(self, of_linear: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the gradient (or value) of the capped logits from W h + b."""
        if self.soft_cap is None:
            return of_linear
        return soft_capped_sums(self._wide(hidden), self.kernel, self.bias, self.soft_cap)[0]

    def _wide(self, hidden: tf.Tensor) -> tf.Tensor:
        return tf.cast(hidden, tf.float64 if self.kernel.dtype == "float64" else tf.float32)

    def to_dense(self, **kwargs: Any) -> keras.layers.Dense:
        self.refuse_soft_cap("to_dense")
        return super().to_dense(**kwargs)

    def refuse_soft_cap(self, who: str) -> None:
        """Raises an error if the head caps its logits: callers compute logits from W and b.

        Raises:
            TypeError: The head caps its logits.
        """
        if self.soft_cap is not None:
            raise TypeError(
                f"{who} needs a head whose logits are W h + b; got {full_name(self)}, which caps "
                f"them: logit_soft_cap={self.soft_cap}"
            )

    def refuse_cosines(self, who: str) -> None:
        """Raises an error if the head's logits are s cos(theta), for the same callers.

        Raises:
            TypeError: They are s cos(theta).
        """
        if self.cosine_scale is not None:
            raise TypeError(
                f"{who} needs a head whose logits are W h + b; got {full_name(self)}, which "
                f"normalises h: cosine_scale={self.cosine_scale:g}"
            )

    def weights_as_arrays(self) -> tuple[np.ndarray, np.ndarray | None]:
        bias = None if self.bias is None else keras.ops.convert_to_numpy(self.bias)
        return keras.ops.convert_to_numpy(self.kernel), bias

    def start_from(self, kernel: np.ndarray, bias: np.ndarray | None) -> None:
        self.kernel.assign(kernel)
        if self.bias is not None:
            self.bias.assign(bias)
        optimizer = getattr(self, "optimizer", None)
        if optimizer is not None:
            optimizer.forget_errors()

    @property
    def weights_with_rows(self) -> list[Any]:
        return [self.kernel] if self.bias is None else [self.kernel, self.bias]

    def set_last_rows(self, first: int, kernel: np.ndarray | None, bias: np.ndarray | None) -> None:
        for weight, rows in ((self.kernel, kernel), (self.bias, bias)):
            if weight is not None and rows is not None:
                all_rows = keras.ops.convert_to_numpy(weight)
                weight.assign(np.concatenate([all_rows[:first], rows]))

    def _initial_kernel(self, shape: tuple[int, int], dtype: Any) -> tf.Tensor:
        return self.initial_rows(shape, dtype)

    def initial_rows(
        self, shape: tuple[int, int], dtype: Any, of_rows: Callable[..., Any] = tf.identity
    ) -> tf.Tensor:
        """Applies a function to the initial rows of W on this worker."""
        whole = self.num_classes, shape[1]
        return initialize_by_blocks(
            self.kernel_initializer, whole, dtype, shard=self.rows.shard, of_rows=of_rows
        )

    def _initial_bias(self, shape: tuple[int], dtype: Any) -> tf.Tensor:
        whole = initial_values(
            self.bias_initializer, (self.num_classes,), dtype, "bias_initializer"
        )
        return self.rows.shard.own(whole)
