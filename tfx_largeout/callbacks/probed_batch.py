# SPDX-License-Identifier: Apache-2.0
"""ProbedBatch: a few examples on which a training gradient stands beside the exact one."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfx_largeout.heads.base import HeadOutput, examples_that_count, head_output
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.labels import Labels
from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.ops.exact.exact_hidden_gradient import exact_hidden_gradient
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.statistics import ExactStatistics


class ProbedBatch(NamedTuple):
    """What a head's training loss is compared with on a few examples. Nothing is updated.

    Attributes:
        head: With W and b.
        loss: The training loss.
        hidden: h `[N, D]` float32, of examples that a Keras mask does not leave out and that have
            labels.
        labels: Those of the N examples.
        exact: Statistics over all classes.
        exact_gradient: `[N, D]`, of the softmax cross-entropy over all classes with respect to h.
    """

    head: KernelHead
    loss: HeadLoss
    hidden: tf.Tensor
    labels: Labels
    exact: ExactStatistics
    exact_gradient: tf.Tensor

    @classmethod
    def of(cls, model: keras.Model, x: Any, y: Any, asked_by: str) -> ProbedBatch:
        """Returns that of a model with a `HeadLoss`. Cost: O(N C D).

        Args:
            model: Compiled.
            x: Inputs of examples.
            y: Their labels.
            asked_by: Who needs it, for the error.

        Raises:
            TypeError: The model's last layer is no head with W and b.
            tf.errors.InvalidArgumentError: No example counts. Raised when the graph runs.
        """
        logits = model(x, training=False)
        output = _kernel_output(logits, asked_by)
        labels = output.for_loss(model.loss.ignore_class).labels(y).positive
        counts = examples_that_count(logits, output) & (labels.counts > 0)
        rule = f"{asked_by} needs at least one example with a label; got"
        with after([Check(tf.reduce_any(counts), lambda: [rule, tf.shape(counts), "without"])]):
            hidden = tf.boolean_mask(tf.cast(output.flat_hidden, tf.float32), counts)
        hidden, labels = tf.stop_gradient(hidden), labels.where(counts)
        exact = output.head.statistics(ExactStatistics, hidden, labels, training=False)
        gradient = exact_hidden_gradient(
            hidden, labels, exact.log_partition, output.head.kernel, output.head.bias
        )
        return cls(output.head, model.loss, hidden, labels, exact, gradient)

    def drawn(self, draw: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the training loss `[N]` and its gradient `[N, D]` with respect to h.

        Args:
            draw: A number above 0: other numbers have other candidates. 0 has those of training.
        """
        with self.head.without_update(draw), tf.GradientTape() as tape:
            tape.watch(self.hidden)
            kind = self.loss.trains_on
            statistics = self.head.statistics(kind, self.hidden, self.labels, training=True)
            values = self.loss.from_statistics(statistics)
        return values, tape.gradient(values, self.hidden)


def require_head_loss(model: keras.Model, asked_by: str) -> None:
    """Raises a TypeError if the loss of a model is no `HeadLoss`."""
    loss = getattr(model, "loss", None)
    if not isinstance(loss, HeadLoss):
        raise TypeError(f"{asked_by} needs a model with a HeadLoss; got {loss!r}")


def _kernel_output(logits: Any, asked_by: str) -> HeadOutput:
    output = head_output(logits)
    if output is None or not isinstance(output.head, KernelHead):
        found = "no head" if output is None else type(output.head).__name__
        raise TypeError(
            f"{asked_by} needs a model whose last layer is a head with W and b; got {found}"
        )
    output.head.refuse_soft_cap(asked_by)
    return output
