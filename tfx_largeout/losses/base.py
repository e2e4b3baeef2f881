# SPDX-License-Identifier: Apache-2.0
"""The loss: a function of a head's statistics."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout import heads
from tfx_largeout.arguments import class_argument
from tfx_largeout.distribute.workers import Workers
from tfx_largeout.example_weights import example_weights
from tfx_largeout.heads.base import HeadOutput, head_output
from tfx_largeout.heads.keras_losses_and_metrics import losses_of
from tfx_largeout.keras_internals import asks_for_shapes, mask_of, set_mask
from tfx_largeout.labels import Labels, check_probabilities, is_sparse_matrix, soft_labels
from tfx_largeout.losses.class_weights import (
    class_weights_argument,
    refuse_class_weight,
    weighted,
)
from tfx_largeout.saving import kept_arguments, pack_array
from tfx_largeout.statistics import CandidateStatistics, ExactStatistics, MeanLogitStatistics

TARGETS, PROBABILITIES = "targets", "probabilities"  # what a loss reads values of labels as

_WORDS = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class HeadLoss(keras.losses.Loss):
    """A loss that asks the head behind `y_pred` for statistics, instead of reading the logits.

    To add a loss, name the kind of statistics that it needs, and write the function of them:

    ```python
    @keras.saving.register_keras_serializable(package="my_package")
    class LargestTarget(HeadLoss):
        trains_on = SoftmaxStatistics

        def from_statistics(self, statistics):
            targets = tf.where(statistics.labels.mask, statistics.target_logits, -np.inf)
            return statistics.log_partition - tf.reduce_max(targets, axis=-1)
    ```

    In a training step (`training=True` in the call of the model, as `fit` does) the loss is
    `from_statistics` of the statistics `trains_on`. Elsewhere (`evaluate`, a plain call) it is
    `exact` of the statistics `evaluates_on`, without an update or a gradient. Sample weights, masks
    and reductions are as in Keras. A loss holds only configuration and is not bound to a head, so
    it is saved with the model.

    An example (in a sequence: a position) without labels, such as one whose labels are all -1, is
    ignored: its loss and gradient are 0, and a mean does not count it, as with a Keras mask of
    False. If no example of a batch has a label, the loss is 0. As in Keras, a mean over the batch
    counts an example whose sample weight is 0, even without labels, but not an example that
    `ignore_class` leaves without labels.

    Each label may have a value. For most losses values are probabilities p_y (soft labels) with a
    sum P of at most 1: mean_{y in Y} (or 1/|Y| sum) in a formula then means sum_y p_y / P, and the
    loss of the example is multiplied by P. So the cross-entropy is -sum_y p_y log q_y, and the
    remaining 1 - P is ignored. (`SquaredError` reads values as targets; an example without entries
    then has the target 0, and is not ignored.)

    `class_weights` v multiply the loss of an example by w, as a sample weight does, and give each
    of its labels Y a share a_y. mean_{y in Y} (or 1/|Y| sum) in a formula then means sum_y a_y:

        w = 1/|Y| sum_{y in Y} v_y,   a_y = v_y / sum_{y' in Y} v_y'

    (for soft labels w = sum_y p_y v_y / P, a_y = p_y v_y / sum_{y' in Y} p_y' v_y').

    With one label per example this equals Keras's `fit(class_weight=...)`. With several, it is
    1/|Y| sum_y v_y l_y for a loss 1/|Y| sum_y l_y. The weights also count in evaluation.

    Arguments stored as attributes of the same name enter the configuration automatically.

    Args:
        name: As `keras.losses.Loss`.
        reduction: As `keras.losses.Loss`. Default `"sum_over_batch_size"`.
        dtype: As `keras.losses.Loss`, for the reduction. Statistics are float32.
        ignore_class: An integer, in [0, C) or not: labels with this id are read as -1, no label. As
            in Keras's `SparseCategoricalCrossentropy`, the class is still one of the C. Metrics of
            the same output ignore it too, unless they have their own `ignore_class`. Default None.
        class_weights: v, `[C]` numbers, finite and at least 0. They are saved compressed. Default
            None: all are 1.

    Raises:
        TypeError: `class_weights` are not numbers.
        ValueError: `ignore_class` is not an integer, or `class_weights` are not `[C]`, or one of
            them is negative or not finite. In a call: there are not C class weights, or values are
            targets and there are class weights or an ignored class.
    """

    # A class attribute, or set by an instance whose arguments decide which statistics it needs.
    trains_on: type = type(None)
    evaluates_on: type = ExactStatistics
    # The meaning of values of labels: TARGETS, which the loss reads itself; PROBABILITIES, for a
    # loss that is a mean over the labels; or None: values raise an error.
    takes_values: ClassVar[str | None] = None
    # Whether `from_statistics` adds up sums over candidates over `workers`. A class that implements
    # `from_statistics` sets it; without it, a loss of candidates raises an error with several
    # workers.
    sums_over_workers: ClassVar[bool] = False

    def __init__(
        self,
        name: str | None = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
        ignore_class: int | None = None,
        class_weights: Any = None,
        **unknown: Any,
    ) -> None:
        self._refuse_unknown(unknown)
        name = name or _WORDS.sub("_", type(self).__name__).lower()
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.ignore_class = class_argument("ignore_class", ignore_class)
        self._class_weights = class_weights_argument(class_weights)
        with tf.init_scope():  # an eager tensor: graphs capture it and do not copy it
            weights = self._class_weights
            self._weights = None if weights is None else tf.constant(weights)

    @property
    def class_weights(self) -> np.ndarray | None:
        """The class weights `[C]` of the loss."""
        return self._class_weights

    def without_margin(self) -> HeadLoss:
        """Returns the loss closest to the exact one: without a margin."""
        return self

    def from_statistics(self, statistics: Any) -> tf.Tensor:
        """Returns the training loss of each example, `[N]`.

        Args:
            statistics: An instance of `trains_on`.
        """
        raise NotImplementedError

    def exact(self, statistics: Any) -> tf.Tensor:
        """Returns the loss of each example in evaluation, `[N]`.

        The default is the same function, if the statistics of evaluation have all fields of the
        training statistics. Otherwise it is the softmax cross-entropy over all classes, so that
        heads with different training losses can be compared.

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
            y_pred: The output of a head.
            sample_weight: `[B]`, or for h `[B, T, D]` also `[B, T]`. Default 1.

        Raises:
            TypeError: `y_pred` does not come from a head, or the head does not give the statistics.
            ValueError: `fit` was given `class_weight` with several labels per example, which Keras
                reads wrongly (detected when a step is traced).
        """
        if asks_for_shapes() and head_output(y_pred) is None:
            # Under the scope of a strategy Keras first infers shapes, with plain tensors.
            is_reduced = self.reduction not in (None, "none")
            return tf.zeros([] if is_reduced else tf.shape(y_pred)[:-1], self.dtype)
        output = self._output(y_pred)
        mask, y_true = mask_of(y_pred), soft_labels(y_true) or y_true
        if sample_weight is not None:
            refuse_class_weight(y_true, output.batch_rank)
        with tf.name_scope(self.name):
            seen = output.for_loss(self.ignore_class)
            whole, y_true, sample_weight, mask = seen.over_workers(y_true, sample_weight, mask)
            output.keep_for_metrics(whole, y_true)
            output = whole
            values, labels = self._values(output, y_true)
            weights = None
            if sample_weight is not None:
                weights = example_weights(output.hidden, sample_weight, None)
            counts = self.counts(labels, weights)
            if mask is not None:
                masked_in = example_weights(output.hidden, None, mask) != 0
                counts = masked_in if counts is None else counts & masked_in
            if counts is not None:
                values = tf.where(counts, values, 0)
            of_labels = labels.mean_weight
            if of_labels is not None:
                weights = of_labels if weights is None else weights * of_labels
            values, counts, weights = (
                None if column is None else output.unflatten(column)
                for column in output.of_all_groups(values, counts, weights)
            )
        if counts is not None:
            set_mask(values, counts)
        # The base class weighs, masks and reduces; `call` receives the values unchanged.
        return super().__call__(values, values, weights)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return y_pred

    def get_config(self) -> dict[str, Any]:
        config = {**kept_arguments(self, HeadLoss), **super().get_config()}
        # Arguments that are None are left out, since a subclass need not take them.
        if self.ignore_class is not None:
            config["ignore_class"] = self.ignore_class
        if self.class_weights is not None:
            config["class_weights"] = pack_array(self.class_weights)
        return config

    def _refuse_unknown(self, arguments: dict[str, Any]) -> None:
        if "label_smoothing" in arguments:
            raise TypeError(
                f"label_smoothing must be left out of {type(self).__name__}, as smoothing takes "
                "the mean of all logits; SoftmaxCrossentropy has it, which trains "
                f"{_listed(_heads_that_give(MeanLogitStatistics))}"
            )
        if "remaining" in arguments:
            raise TypeError(
                f"remaining must be left out of {type(self).__name__}, which ignores what the "
                "probabilities of soft labels leave of 1; SoftmaxCrossentropy has it, as spreading "
                "it takes the mean of all logits"
            )
        if "class_weight" in arguments:
            raise TypeError(
                f"class_weight must be left out of {type(self).__name__}, whose argument is "
                "class_weights, one number for each class; class_weight is one of fit"
            )
        for margin in {"cosine_margin", "angular_margin"} & arguments.keys():
            raise TypeError(
                f"{margin} must be left out of {type(self).__name__}, which is no softmax of "
                "cosines; SoftmaxCrossentropy, ComplementarySum, SampledSoftmax and "
                "ActiveSetSoftmax have it"
            )
        if arguments:
            raise TypeError(
                f"{type(self).__name__} got an unexpected keyword argument {min(arguments)!r}"
            )

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
            gives = output.head.gives
            raise TypeError(
                f"{type(self).__name__} needs {kind.__name__}; got "
                f"{type(output.head).__name__}, which gives "
                f"{' and '.join(given.__name__ for given in gives)}. {self._why_this_kind()}"
                "Use a loss for what the head gives "
                f"({_listed(losses_of(gives))}), or a head that gives {kind.__name__} "
                f"({_listed(_heads_that_give(kind))})."
            )
        self._check_over_workers(output.head.workers, kind)
        return output

    def _check_over_workers(self, workers: Workers, kind: type) -> None:
        if self.reduction in (None, "none"):
            workers.refuse_several(
                "reduction must be a sum or a mean where several workers train a model, since the "
                f"loss is that of the global batch; got {self.reduction!r}",
                ValueError,
            )
        writes = next(c for c in type(self).__mro__ if "from_statistics" in c.__dict__)
        if kind is CandidateStatistics and not writes.__dict__.get("sums_over_workers", False):
            workers.refuse_several(
                f"{type(self).__name__} must say with sums_over_workers=True in {writes.__name__}, "
                "which writes from_statistics, that it adds up over workers what it finds among "
                "the candidates of each; got a head whose classes are spread over workers",
                NotImplementedError,
            )

    def _why_this_kind(self) -> str:
        """Returns how an argument determines the kind of statistics, for an error message."""
        return ""

    def _kind(self, output: HeadOutput) -> type:
        return self.trains_on if output.training else self.evaluates_on

    def counts(self, labels: Labels, weights: tf.Tensor | None) -> tf.Tensor | None:
        """Returns which examples a mean counts: `[N]` bool, or None for all."""
        if labels.values is not None and self.takes_values == TARGETS:  # all may be 0
            return None
        has_label = tf.reduce_any(labels.mask, axis=-1)
        if weights is None or self.ignore_class is not None:
            return has_label
        return has_label | tf.equal(weights, 0)

    def _values(self, output: HeadOutput, y_true: Any) -> tuple[tf.Tensor, Labels]:
        are_targets = isinstance(y_true, tf.SparseTensor) or is_sparse_matrix(y_true)

        def check(labels: Labels) -> Labels:
            labels = self._with_sets(labels) if are_targets else labels
            return self.checked(labels, output.head.num_classes)

        statistics = output.statistics(self._kind(output), y_true, check)
        values = self.from_statistics(statistics) if output.training else self.exact(statistics)
        labels = statistics.labels
        if labels.values is not None and self.takes_values == PROBABILITIES:
            values = self.of_probabilities(values, labels)
        return values, labels

    def of_probabilities(self, values: tf.Tensor, labels: Labels) -> tf.Tensor:
        """Returns the losses `[N]` of soft labels: P times the losses of the shares p_y / P."""
        return tf.cast(labels.mass, values.dtype) * values

    def _with_sets(self, labels: Labels) -> Labels:
        """Returns the labels of a sparse tensor: a row of ones is a set of labels."""
        if labels.values is None or self.takes_values == TARGETS:
            return labels
        return labels.sets_as_shares if self.takes_values else labels.as_set(type(self).__name__)

    def checked(self, labels: Labels, num_classes: int) -> Labels:
        """Returns weighted labels of C classes in the loss's form, or raises an error."""
        if labels.values is not None:
            name = type(self).__name__
            if self.takes_values is None:
                raise TypeError(
                    f"{name} must get integer class ids as labels; got sparse targets or soft "
                    "labels, whose values mean nothing to it. Losses to which they do: "
                    f"{', '.join(_losses_that_take_values())}"
                )
            if self.takes_values == PROBABILITIES:
                labels = check_probabilities(labels, name)
            elif self.ignore_class is not None:
                raise ValueError(
                    "ignore_class must be None for targets with values, which "
                    f"{name} takes; got {self.ignore_class}. Leave them out of the targets."
                )
        if self._weights is None:
            return labels
        return weighted(labels, self._weights, num_classes, self.takes_values == TARGETS)


def _losses_that_take_values() -> list[str]:
    known = keras.saving.get_custom_objects().values()
    return sorted({x.__name__ for x in known if getattr(x, "takes_values", None) is not None})


def _describe(y_pred: Any) -> str:
    if not isinstance(y_pred, tf.Tensor):
        return repr(type(y_pred).__name__)
    return f"a tensor of shape {y_pred.shape} and dtype {y_pred.dtype.name}"


def _heads_that_give(kind: type) -> list[str]:
    """Returns the names of the package's heads that give a kind of statistics in training."""
    return [
        name
        for name in heads.__all__
        if isinstance(head := getattr(heads, name), type)
        and issubclass(head, heads.Head)
        and kind in head.gives
    ]


def _listed(names: list[str]) -> str:
    """Returns names joined for a sentence."""
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none of the package"
