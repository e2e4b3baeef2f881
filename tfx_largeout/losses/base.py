# SPDX-License-Identifier: Apache-2.0
"""The loss: a function of a head's statistics."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from tfx_largeout.example_weights import example_weights
from tfx_largeout.heads.base import HeadOutput, head_output
from tfx_largeout.labels import Labels, require_labels
from tfx_largeout.losses.class_weight import refuse_class_weight
from tfx_largeout.statistics import CandidateStatistics, ExactStatistics


class HeadLoss(keras.losses.Loss):
    """A loss that asks the head behind `y_pred` for statistics, instead of reading the logits.

    To add a loss, say of which kind of statistics it is a function, and write the function:

    ```python
    @keras.saving.register_keras_serializable(package="my_package")
    class LargestTarget(HeadLoss):
        trains_on = SoftmaxStatistics

        def from_statistics(self, statistics):
            targets = tf.where(statistics.labels.mask, statistics.target_logits, -np.inf)
            return statistics.log_partition - tf.reduce_max(targets, axis=-1)
    ```

    In a training step (`training=True` in the call of the model, as `fit` does) the loss is
    `from_statistics` of the statistics `trains_on`. Anywhere else (`evaluate`, a plain call) it is
    `exact` of the statistics `evaluates_on`; then nothing is updated, and there is no gradient.
    Sample weights, masks and reductions are Keras's own. A loss carries configuration only and is
    bound to no head, so that it is saved with the model.

    Args:
        reduction: As `keras.losses.Loss`. Default `"sum_over_batch_size"`.
        name: As `keras.losses.Loss`.
        dtype: As `keras.losses.Loss`; of the reduction. Statistics are float32.
    """

    # Of the class, or of an instance whose arguments say of what it is a function.
    trains_on: type = type(None)
    evaluates_on: type = ExactStatistics
    needs_labels: ClassVar[bool] = True
    takes_values: ClassVar[bool] = False  # whether targets may have values beside their ids
    # Whether `from_statistics` adds up over `workers` what it finds among candidates. Says so the
    # class that writes it: a loss of candidates that does not is refused over several workers.
    sums_over_workers: ClassVar[bool] = False

    def from_statistics(self, statistics: Any) -> tf.Tensor:
        """Returns the training loss of each example, `[N]`.

        Args:
            statistics: An instance of `trains_on`.
        """
        raise NotImplementedError

    def exact(self, statistics: Any) -> tf.Tensor:
        """Returns the loss of each example in evaluation, `[N]`.

        By default it is the same function, if the statistics of evaluation have all that those of
        training have. Otherwise it is the softmax cross-entropy over all classes, so that training
        losses can be compared that are estimates, each on a scale of its own.

        Args:
            statistics: An instance of `evaluates_on`.
        """
        if set(self.trains_on._fields) <= set(statistics._fields):  # type: ignore[attr-defined]
            return self.from_statistics(statistics)
        if not isinstance(statistics, ExactStatistics):
            raise NotImplementedError(
                f"{type(self).__name__} must write `exact`, as {type(statistics).__name__}, which "
                f"it evaluates on, has not all that {self.trains_on.__name__} has"
            )
        return statistics.cross_entropy()

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """Returns the reduced loss.

        Args:
            y_true: Labels, in any form of `normalize_labels`.
            y_pred: What a head returned.
            sample_weight: `[B]`, or for h `[B, T, D]` also `[B, T]`. Default 1.

        Raises:
            TypeError: `y_pred` comes from no head, or from one that does not give the statistics.
            ValueError: `fit` was given `class_weight` with several labels an example, which Keras
                reads wrongly (noticed when a step is traced).
        """
        if in_symbolic_scope() and head_output(y_pred) is None:
            # Under the scope of a strategy Keras first asks for shapes alone, of bare tensors.
            whole = self.reduction in (None, "none")
            return tf.zeros(tf.shape(y_pred)[:-1] if whole else [], self.dtype)
        output = self._output(y_pred)
        mask = getattr(y_pred, "_keras_mask", None)
        if sample_weight is not None:
            refuse_class_weight(y_true, output.batch_rank)
        with tf.name_scope(self.name):
            own = output
            output, y_true, sample_weight, mask = own.over_workers(y_true, sample_weight, mask)
            own.keep_for_metrics(output, y_true)
            values = self._values(output, y_true, _needed(output, mask, sample_weight))
            values = output.unflatten(values)
        if sample_weight is not None:
            sample_weight = output.unflatten(example_weights(output.hidden, sample_weight, None))
        if mask is not None:
            values._keras_mask = mask
        # The base class weighs, masks and reduces; `call` hands it the values as they are.
        return super().__call__(values, values, sample_weight)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return y_pred

    def _output(self, y_pred: Any) -> HeadOutput:
        output = head_output(y_pred)
        if output is None:
            raise TypeError(
                f"{type(self).__name__} needs the output of a head (such as DenseHead) itself as "
                f"y_pred; got {_describe(y_pred)}, which carries none. Make the head the model's "
                "last layer, with nothing (no activation, no reshape, no cast) behind it, and call "
                "model and loss in the same tf.function."
            )
        kind = self._kind(output)
        if self.trains_on is type(None):
            raise TypeError(
                f"{type(self).__name__} must say in `trains_on` of which kind of statistics it is "
                "a function; got None"
            )
        if not output.gives(kind):
            kinds = " and ".join(given.__name__ for given in output.head.gives)
            raise TypeError(
                f"{type(self).__name__} is a function of {kind.__name__}; got "
                f"{type(output.head).__name__}, which gives {kinds}. Use a loss that is a function "
                "of what the head gives."
            )
        if not output.head.workers.alone:
            self._check_over_workers(kind)
        return output

    def _check_over_workers(self, kind: type) -> None:
        if self.reduction in (None, "none"):
            raise ValueError(
                "reduction must be a sum or a mean where several workers train a model, since the "
                f"loss is that of the global batch; got {self.reduction!r}"
            )
        writes = next(c for c in type(self).__mro__ if "from_statistics" in c.__dict__)
        if kind is CandidateStatistics and not writes.__dict__.get("sums_over_workers", False):
            raise NotImplementedError(
                f"{type(self).__name__} must say with sums_over_workers=True in {writes.__name__}, "
                "which writes from_statistics, that it adds up over workers what it finds among "
                "the candidates of each; got a head whose classes are spread over workers"
            )

    def _kind(self, output: HeadOutput) -> type:
        return self.trains_on if output.training else self.evaluates_on

    def _values(self, output: HeadOutput, y_true: Any, needed: tf.Tensor | None) -> tf.Tensor:
        check = functools.partial(self._checked, needed=needed)
        statistics = output.statistics(self._kind(output), y_true, check)
        return self.from_statistics(statistics) if output.training else self.exact(statistics)

    def _checked(self, labels: Labels, needed: tf.Tensor | None) -> Labels:
        if labels.values is not None and not self.takes_values:
            raise TypeError(
                f"{type(self).__name__} must get integer class ids as labels; got sparse targets "
                "with values of their own, which only losses such as SquaredError take"
            )
        return require_labels(labels, needed) if self.needs_labels else labels


def _needed(output: HeadOutput, mask: Any, sample_weight: Any) -> tf.Tensor | None:
    """Returns `[N]` bool, False where mask or weight say that an example counts for nothing."""
    if mask is None and sample_weight is None:
        return None
    return example_weights(output.hidden, sample_weight, mask) != 0


def _describe(y_pred: Any) -> str:
    if not isinstance(y_pred, tf.Tensor):
        return repr(type(y_pred).__name__)
    return f"a tensor of shape {y_pred.shape} and dtype {y_pred.dtype.name}"
