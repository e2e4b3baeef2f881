# SPDX-License-Identifier: Apache-2.0
"""The shared base of all metrics: a ratio of two weighted sums over the examples."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import class_argument, flag_argument
from tfx_largeout.class_filter import ALL_CLASSES, NEVER, Findable
from tfx_largeout.example_weights import example_weights
from tfx_largeout.heads.base import head_output
from tfx_largeout.keras_internals import mask_of
from tfx_largeout.labels import normalize_labels
from tfx_largeout.ops.exact.ranks_from_logits import order_keys, ranks_from_logits
from tfx_largeout.statistics import ExactStatistics


class EvaluationMetric(keras.metrics.Metric):
    """A metric without a result in training steps that skip it, not even 0.

    Args:
        name, dtype: As any Keras metric.
    """

    during_training: bool = False  # tells this package's loops that a metric uses heads

    def __init__(self, name: str | None, dtype: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        self.was_updated = self.add_variable(
            (), "zeros", dtype="bool", aggregation="only_first_replica", name="was_updated"
        )
        self._skips_in: Any = None

    def skip(self) -> None:
        """Called instead of an update."""
        self._skips_in = _present_graph()

    def _skips(self) -> bool:
        """Whether its result is requested in training, without an update there."""
        if self._skips_in is None:
            return False
        if tf.executing_eagerly():  # at the end of an epoch
            return not self.was_updated.numpy()
        return self._skips_in() is tf.compat.v1.get_default_graph()


class ExactMetric(EvaluationMetric):
    """Streams `sum_n w_n numerator_n / sum_n w_n denominator_n` over the examples n.

    A subclass defines `example_ratio`. An example without labels is left out. The statistics come
    from the head that `y_pred` carries (one exact pass, shared with the loss and with every other
    metric) or, for plain logits, from the logits themselves. Both sums are kept in float64: they
    count examples exactly up to 2^53.

    Args:
        during_training: Whether to update in the training steps of a model with a head, too. Each
            such step then needs an exact pass over all C classes. Default False: no cost in
            training steps, and the metric is missing from the training logs (callbacks find it as
            `val_...`).
        name: Name of the metric. Default None: a name by its class.
        dtype: Dtype of the result. Default `keras.config.floatx()`. The sums stay float64.
        ignore_class: An integer, in [0, C) or not: labels with this id are read as -1, no label.
            Default None: the class that the loss of the same output ignores, if it ignores one.
    """

    default_name: str | None = None
    _direction = "up"  # for Keras's callbacks

    def __init__(
        self,
        during_training: bool = False,
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
    ) -> None:
        super().__init__(name or self.default_name, dtype)
        self.ignore_class = class_argument("ignore_class", ignore_class)
        self.during_training = flag_argument("during_training", during_training)
        self.numerator = self.add_variable((), "zeros", dtype="float64", name="numerator")
        self.denominator = self.add_variable((), "zeros", dtype="float64", name="denominator")

    def example_ratio(self, statistics: ExactStatistics) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the terms of each example in the numerator and in the denominator.

        Args:
            statistics: The statistics of N examples.

        Returns:
            Two `[N]` float64 tensors.
        """
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: Labels, in any form of `normalize_labels`. Ids stay integers. If labels have
                values, such as soft labels, ids with values above 0 are labels.
            y_pred: The output of a head, or plain logits `[B, C]` or `[B, T, C]`. Its Keras mask
                counts as weights of 0.
            sample_weight: `[B]`, or for `[B, T, C]` also `[B, T]`. Default 1. An example of
                weight 0 is left out, even if its value is NaN.

        Raises:
            TypeError: `y_pred` is not floating, or the labels are not integers.
            ValueError: The shape of `y_pred`, of the labels or of `sample_weight` is wrong.
            tf.errors.InvalidArgumentError: A label is out of range, or the numbers of rows differ.
        """
        self.add_batch(y_true, y_pred, sample_weight)

    def add_batch(
        self,
        y_true: Any,
        y_pred: Any,
        sample_weight: Any,
        filtered: bool = False,
        exclude: Any = None,
        findable: Findable = ALL_CLASSES,
    ) -> None:
        """As `update_state`; `filtered`: by ranks without the classes that each example excludes.

        These are `exclude`, or the ones from the head's call. Only findable classes count.
        """
        y_pred = tf.convert_to_tensor(y_pred)
        output, mask = head_output(y_pred), mask_of(y_pred)
        if output is not None and exclude is not None:
            output = output.excluding(exclude)
        skips = output is not None and output.training and not self.during_training
        if output is None or (output.is_trained_by_logits and not skips):
            exclude = exclude if output is None else output.exclude
            if filtered and exclude is None:
                raise ValueError(
                    "filtered must be False unless it is said which classes each example excludes; "
                    "got logits without them: call a head as head(h, exclude=...), or update_state "
                    "with exclude"
                )
            exclude = exclude if filtered else None
            ignored = self.ignore_class
            if output is not None and ignored is None:
                ignored = output.ignored_by_loss
            statistics = statistics_of_logits(y_true, y_pred, ignored, exclude, findable)
            batch = y_pred
        elif skips:
            self.skip()
            return
        else:
            output = output.for_metric(self.ignore_class)
            output, y_true, sample_weight, mask = output.over_workers(
                y_true, sample_weight, mask, filtered
            )
            groups = findable.groups(output.head.num_classes)
            if filtered or groups is not None:
                key = None if findable.allow is None else findable.allow.tobytes()
                table = None if groups is None else tf.constant(groups)
                statistics = output.filtered_ranks(y_true, filtered, table, key)
            else:
                statistics = output.statistics(ExactStatistics, y_true)
            # The batch shape comes from h: reading it from the logits keeps them in the graph.
            batch = output.hidden
        statistics = statistics.of_positive_targets
        numerator, denominator = self.example_ratio(statistics)
        weights = example_weights(batch, sample_weight, mask)
        weights = tf.where(tf.reduce_any(statistics.labels.mask, axis=-1), weights, 0)
        terms = [tf.math.multiply_no_nan(each, weights) for each in (numerator, denominator)]
        terms = terms if output is None else output.of_all_groups(*terms)
        for tell in _TOLD:
            tell(self, *terms)
        self.numerator.assign_add(tf.reduce_sum(terms[0]))
        self.denominator.assign_add(tf.reduce_sum(terms[1]))
        self.was_updated.assign(True)

    def ratio(self) -> tf.Tensor:
        """Returns the ratio so far, a float64 scalar; NaN if nothing was counted."""
        return keras.ops.divide(self.numerator, self.denominator)

    def result(self) -> tf.Tensor | dict[str, Any]:
        """Returns the metric so far, a scalar of the metric's dtype; NaN if nothing was counted.

        In a training step without an update: an empty dict, which Keras adds to its logs.
        """
        if self._skips():
            return {}
        return keras.ops.cast(self.ratio(), self.dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of an equal metric, as plain values."""
        config = {**super().get_config(), "during_training": self.during_training}
        if self.ignore_class is not None:  # a subclass need not take it
            config["ignore_class"] = self.ignore_class
        return config


_TOLD: list[Callable[[ExactMetric, tf.Tensor, tf.Tensor], None]] = []


@contextlib.contextmanager
def ratios_told(
    tell: Callable[[ExactMetric, tf.Tensor, tf.Tensor], None],
) -> Iterator[None]:
    """A context in which metrics report the terms of each example, `[N]` float64."""
    _TOLD.append(tell)
    try:
        yield
    finally:
        _TOLD.remove(tell)


def statistics_of_logits(
    y_true: Any,
    logits: tf.Tensor,
    ignore_class: int | None = None,
    exclude: Any = None,
    findable: Findable = ALL_CLASSES,
) -> ExactStatistics:
    """Computes a head's evaluation statistics from logits `[..., C]`, in O(N C K).

    With `exclude`, integers `[..., E]`, or if not all classes are findable, filtered.

    The batch dimensions are flattened to N; the dtype is float32 or, for float64 logits, float64.
    """
    rank = logits.shape.rank
    if rank is None or rank < 2 or logits.shape[-1] is None:
        raise ValueError(f"y_pred must be logits [..., C] of known C; got shape {logits.shape}")
    if not logits.dtype.is_floating:
        raise TypeError(f"y_pred must be floating; got dtype {logits.dtype.name}")
    num_classes = logits.shape[-1]
    flat = tf.reshape(logits, [-1, num_classes])
    if flat.dtype != tf.float64:
        flat = tf.cast(flat, tf.float32)
    labels = normalize_labels(y_true, num_classes, tf.shape(logits)[:-1], ignore_class)
    target_logits = tf.gather(flat, labels.safe_ids, batch_dims=1)
    groups = findable.groups(num_classes)
    table = None if groups is None else tf.constant(groups)
    allowed = findable.filter(table, num_classes, logits, exclude, None)
    if allowed is None:
        ranks = ranks_from_logits(flat, labels.ids)
    else:
        keys = allowed.masked(tf.maximum(order_keys(flat), flat.dtype.min), 0, num_classes)
        ranks = ranks_from_logits(keys, labels.ids)
        is_out = labels.mask & allowed.hides(labels.ids)
        ranks = tf.where(is_out, tf.constant(NEVER, tf.int64), ranks)
    return ExactStatistics(
        labels,
        tf.where(labels.mask, target_logits, tf.zeros_like(target_logits)),
        tf.reduce_logsumexp(flat, axis=-1),
        ranks,
    )


def _present_graph() -> Any:
    if tf.executing_eagerly():
        return lambda: None
    return weakref.ref(tf.compat.v1.get_default_graph())
