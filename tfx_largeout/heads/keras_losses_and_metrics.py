# SPDX-License-Identifier: Apache-2.0
"""Keras's losses and metrics behind a head.

Losses that expect probabilities raise an error. Metrics are computed by a head's exact pass instead
of all logits. Labels with values, a pair to Keras, reach losses and metrics as one object.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import full_name
from tfx_largeout.example_weights import example_weights
from tfx_largeout.keras_internals import (
    asks_for_shapes,
    averaged_function,
    in_train_step,
    is_functional,
    last_layer,
    loss_given,
    losses_and_outputs,
    mask_of,
    metrics_given,
    options_of_function,
)
from tfx_largeout.labels import Labels, soft_labels
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.statistics import ExactStatistics, SoftmaxStatistics

HEAD_OUTPUT = "_tfx_largeout_head_output"
"""The attribute of logits in which a head leaves its `HeadOutput`."""


def losses_of(kinds: tuple[type, ...]) -> list[str]:
    """Returns the names of registered losses whose `trains_on` is one of the given kinds."""
    known = keras.saving.get_custom_objects().values()
    losses = [x for x in known if isinstance(x, type) and issubclass(x, keras.Loss)]
    return sorted({x.__name__ for x in losses if getattr(x, "trains_on", None) in kinds})


def refuse_loss_of_probabilities(head: Any, model: Any) -> None:
    """Raises an error in a training step if a Keras loss would read logits as probabilities.

    Training would silently go wrong, because Keras clips values outside of [0, 1]. Models with a
    custom step, or for which it is not known that they end in the head, are not checked.
    """
    loss = only_loss(model)
    is_step = loss is not None and is_functional(model) and (in_train_step() or model.run_eagerly)
    if not is_step or not trains_as_keras_does(model) or last_layer(model) is not head:
        return
    if _wants_probabilities(loss):
        name = getattr(loss, "__name__", None) or (loss if isinstance(loss, str) else None)
        named = ", ".join(losses_of(head.gives))
        same = "the same loss with from_logits=True, or " if SoftmaxStatistics in head.gives else ""
        raise ValueError(
            f"the loss must be one of logits, which {full_name(head)} gives; got "
            f"{name or type(loss).__name__} of probabilities. Use {same}a loss of tlo.losses: "
            f"{named}."
        )


def trains_as_keras_does(model: Any) -> bool:
    """Returns whether a step of `fit` takes one gradient, and then the optimizer's step."""
    return all(
        getattr(getattr(model, name), "__func__", None) is getattr(keras.Model, name)
        for name in ("train_step", "compute_loss")
    )


def only_loss(model: Any) -> Any:
    """Returns the loss of a model's only output, for any form of `compile`'s argument.

    None if it has none; a list or dict if it has several.
    """
    loss = getattr(model, "loss", None)
    parts = keras.tree.flatten(loss)
    return parts[0] if len(parts) == 1 else loss


def _wants_probabilities(loss: Any) -> bool:
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    if inspect.isfunction(loss) or inspect.isclass(loss):
        argument = inspect.signature(loss).parameters.get("from_logits")
        return argument is not None and argument.default is False
    return options_of_function(loss).get("from_logits") is False


def _accuracy(rank: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    return rank < 1


def _top_k_accuracy(
    rank: tf.Tensor, loss: tf.Tensor, k: int = 5, from_sorted_ids: bool = False
) -> tf.Tensor:
    return rank < k


def _crossentropy(rank: tf.Tensor, loss: tf.Tensor, **options: Any) -> tf.Tensor:
    return loss


# Functions of the rank of an example's label, `[N]` (0: best, -1: no label), and its loss, `[N]`.
_BY_FUNCTION = {
    keras.metrics.sparse_categorical_accuracy: _accuracy,
    keras.metrics.categorical_accuracy: _accuracy,
    keras.metrics.sparse_top_k_categorical_accuracy: _top_k_accuracy,
    keras.metrics.top_k_categorical_accuracy: _top_k_accuracy,
    keras.losses.sparse_categorical_crossentropy: _crossentropy,
    keras.losses.categorical_crossentropy: _crossentropy,
}
_MANY = 10_000  # classes: a pass over fewer is quick
_NAMES = {"accuracy", "acc"}
for _name in (function.__name__ for function in _BY_FUNCTION):
    _NAMES |= {_name, _name.title().replace("_", "")}


def serve_metrics(model: Any) -> bool:
    """Lets the compiled metrics of a model ask the heads behind its outputs.

    Keras resolves metric names at the first update, by the shapes of labels and outputs. This
    function changes the resolved metrics, in the model's objects.

    Returns:
        Whether one of the metrics reads training steps: a loss then computes exact statistics
        before the step changes W.
    """
    _serve_loss(model)
    found = metrics_given(model)
    if found is None:
        return False
    compiled, given = found
    if not isinstance(compiled.__dict__.get("update_state"), functools.partial):
        compiled.update_state = functools.partial(_update_all, compiled)
    if getattr(model, "train_function", None) is None:
        return False  # a custom loop, which knows when it reads metrics
    return any(map(_looks_at_training, given))


def _serve_loss(model: Any) -> None:
    """Joins labels for a model's losses (`_joined`), and notes the classes that they ignore."""
    found = loss_given(model)
    if found is None or "call" in vars(found[0]):
        return
    compiled, losses = found
    joins = any(hasattr(loss, "trains_on") for loss in losses)

    def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if joins:
            y_true, sample_weight = _joined(y_true, y_pred, sample_weight, compiled.output_names)
        value = type(compiled).call(compiled, y_true, y_pred, sample_weight)
        for loss, logits in losses_and_outputs(compiled, y_pred):
            output, ignored = getattr(logits, HEAD_OUTPUT, None), ignored_by(loss)
            if output is not None and ignored is not None:
                output.ignored_by_loss = ignored
        return value

    compiled.call = call


def ignored_by(loss: Any) -> int | None:
    """Returns the class that a loss, of Keras or not, ignores."""
    ignored = getattr(loss, "ignore_class", options_of_function(loss).get("ignore_class"))
    return int(ignored) if isinstance(ignored, numbers.Integral) else None


def ignored_by_loss_of(model: Any) -> int | None:
    """Returns the class that the loss of a model's only output ignores."""
    return ignored_by(only_loss(model))


def no_class_below_0(ignored: int | None) -> int | None:
    """Returns an ignored class; None for an id below 0, which is no class."""
    return None if ignored is None or ignored < 0 else ignored


def _joined(y_true: Any, y_pred: Any, weight: Any, names: Any) -> tuple[Any, Any]:
    """Returns labels and weights per output, in Keras's form, with `SoftLabels` for pairs.

    Keras expects one label tensor per output tensor, and reads a pair or a dict as the labels of
    two outputs. It gives both parts of such labels the weights of the example.
    """
    if not keras.tree.is_nested(y_true):
        return y_true, weight
    outputs = _parts(y_pred, names if isinstance(y_true, dict) else None)
    soft = soft_labels(y_true, must_be=True) if len(outputs) == 1 else None
    if soft is not None:
        return soft, _only_weight(weight)
    labels = _parts(y_true)
    if len(labels) == len(outputs) == 1:  # whatever its name
        outputs = dict(zip(labels, outputs.values(), strict=True))
        (part,) = labels.values()
        if not keras.tree.is_nested(y_pred) and soft_labels(part, must_be=True) is not None:
            return _joined(part, y_pred, weight, None)
    weights = _parts(weight)
    if weights.keys() != labels.keys():
        weights = dict.fromkeys(labels, weight)
    pairs = {
        key: _joined(part, outputs.get(key), weights[key], None) for key, part in labels.items()
    }
    y_true = _like(y_true, [of_output[0] for of_output in pairs.values()])
    if keras.tree.is_nested(weight) and _parts(weight).keys() == labels.keys():
        weight = _like(weight, [of_output[1] for of_output in pairs.values()])
    return y_true, weight


def _parts(x: Any, names: Any = None) -> dict[Any, Any]:
    if isinstance(x, dict):
        return x
    parts = list(x) if isinstance(x, (list, tuple)) else [x]
    keys = names if names and len(names) == len(parts) else range(len(parts))
    return dict(zip(keys, parts, strict=True))


def _like(x: Any, parts: list[Any]) -> Any:
    return dict(zip(x, parts, strict=True)) if isinstance(x, dict) else type(x)(parts)


def _only_weight(weight: Any) -> Any:
    parts = keras.tree.flatten(weight) if keras.tree.is_nested(weight) else [weight]
    rule = "sample_weight must be that of the examples, the same for ids and probabilities; got"
    same = [tf.reduce_all(tf.equal(parts[0], part)) for part in parts[1:]]
    with after([Check(tf.reduce_all(same), lambda: [rule, *parts])] if same else []):
        return parts[0] if parts[0] is None else tf.identity(parts[0])


def _looks_at_training(metric: Any) -> bool:
    if isinstance(metric, str):
        return metric in _NAMES
    if isinstance(metric, keras.metrics.Metric):
        asks = getattr(metric, "during_training", False)
        return asks or averaged_function(metric) in _BY_FUNCTION
    return metric in _BY_FUNCTION


def _update_all(compiled: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
    """Updates the metrics of a model, once each of them can ask a head."""
    y_true, sample_weight = _joined(y_true, y_pred, sample_weight, compiled.output_names)
    if not compiled.built:
        compiled.build(y_true, y_pred)
    for metric in compiled.metrics:
        asks = hasattr(metric, "during_training")  # one of this package
        if not asks and not isinstance(metric.__dict__.get("update_state"), _UpdateByHead):
            metric.update_state = _UpdateByHead(metric)
    type(compiled).update_state(compiled, y_true, y_pred, sample_weight)


class _UpdateByHead:
    """Updates a Keras metric: by a head's exact statistics if possible, else as Keras does."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._has_warned = False

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        output = getattr(y_pred, HEAD_OUTPUT, None)
        if output is None and asks_for_shapes():
            return  # Keras asks for shapes, with plain tensors
        if output is None or _is_one_hot(y_true, output):
            self._as_keras(y_true, y_pred, sample_weight)
        elif output.is_trained_by_logits:
            if self._is_served():
                y_true, sample_weight = self._of_labelled(output, y_true, sample_weight)
            self._as_keras(y_true, y_pred, sample_weight)
        elif self._is_served():
            mask = mask_of(y_pred)
            self._warn_of_pass(output)
            self._by_head(output, y_true, sample_weight, mask)
        elif soft_labels(y_true) is not None and not self._is_loss_of_head:
            raise TypeError(
                f"metric {self._metric.name!r} must get labels without values; got soft labels, "
                "which accuracies, cross-entropies and tlo.metrics take"
            )
        else:
            self._warn(output)
            self._as_keras(y_true, y_pred, sample_weight)

    @property
    def _is_loss_of_head(self) -> bool:
        return hasattr(averaged_function(self._metric), "evaluates_on")

    def _as_keras(self, *arguments: Any) -> None:
        type(self._metric).update_state(self._metric, *arguments)

    def _is_served(self) -> bool:
        options = options_of_function(self._metric)
        others = ("from_sorted_ids", "label_smoothing")
        is_plain = not any(options.get(name) for name in others) and options.get("axis", -1) == -1
        return averaged_function(self._metric) in _BY_FUNCTION and is_plain

    def _by_head(self, output: Any, y_true: Any, sample_weight: Any, mask: Any) -> None:
        metric, options = self._metric, options_of_function(self._metric)
        of_rank = _BY_FUNCTION[averaged_function(metric)]
        if not options.get("from_logits", True) or (
            of_rank is _crossentropy and "from_logits" not in options
        ):
            raise ValueError(
                f"metric {metric.name!r} must have from_logits=True, as a head gives logits; got "
                "from_logits=False. Use keras.metrics.SparseCategoricalCrossentropy("
                "from_logits=True) or tlo.metrics.ExactLoss()."
            )
        ignored = self._ignored
        seen = output.for_metric(ignored if ignored is not None and ignored < 0 else None)
        output, y_true, sample_weight, mask = seen.over_workers(y_true, sample_weight, mask)
        exact = output.statistics(ExactStatistics, y_true).of_positive_targets
        labels, counted = exact.labels, exact.labels.mask
        if ignored is not None:
            counted &= labels.ids != ignored
        loss = tf.where(counted, exact.log_partition[:, tf.newaxis] - exact.target_logits, 0)
        if labels.values is None:
            with after([_at_most_one(metric, labels)]):
                counted = tf.identity(counted)
        else:  # a target distribution: the argmax of its dense row
            loss *= tf.cast(labels.values, loss.dtype)
            counted = labels.are_largest(counted)
        has_label, loss = tf.reduce_any(counted, axis=-1), tf.reduce_sum(loss, axis=-1)
        rank = tf.reduce_sum(tf.where(counted, exact.target_ranks, 0), axis=-1)
        values = of_rank(rank, loss, **options)
        weights = example_weights(output.hidden, sample_weight, mask)
        weights = tf.where(has_label, weights, 0)
        values = tf.where(weights != 0, tf.cast(values, metric.dtype), 0)
        values, weights = output.of_all_groups(values, weights)
        keras.metrics.Mean.update_state(metric, values, weights)

    @property
    def _ignored(self) -> int | None:
        return options_of_function(self._metric).get("ignore_class")

    def _of_labelled(self, output: Any, y_true: Any, sample_weight: Any) -> tuple[Any, Any]:
        """Returns labels and weights with which Keras's metric counts what `_by_head` counts."""
        if tuple(y_true.shape[output.batch_rank :]) not in ((), (1,)):
            return y_true, sample_weight  # Keras has its own words
        ids = tf.cast(y_true, tf.int64)
        counted, own, of_loss = ids >= 0, self._ignored, output.ignored_by_loss
        if of_loss is not None and (own is None or own >= 0):
            counted &= ids != of_loss
        if own is None:
            y_true = tf.where(counted, y_true, tf.zeros_like(y_true))  # a loss of NaN has no weight
        else:
            counted &= ids != own
        weights = example_weights(output.hidden, sample_weight, None)
        weights = tf.where(tf.reshape(counted, [-1]), weights, 0)
        return y_true, tf.reshape(weights, tf.shape(output.hidden)[:-1])

    def _warn_of_pass(self, output: Any) -> None:
        """Warns of a pass over all classes in training that the step of the head does not need."""
        head, name = output.head, self._metric.name
        is_cheap = head.num_classes < _MANY or SoftmaxStatistics in head.gives
        if self._has_warned or not output.training or is_cheap:
            return
        self._has_warned = True
        warnings.warn(
            f"metric {name!r} reads all {head.num_classes:,} classes in each training step, which "
            f"{full_name(head)} does not. Use tlo.metrics.PrecisionAtK(1), RecallAtK or ExactLoss, "
            "which are computed in evaluation alone.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _warn(self, output: Any) -> None:
        head, name = output.head, self._metric.name
        if self._has_warned or (self._is_loss_of_head and not output.training):
            return
        self._has_warned = True
        if self._is_loss_of_head:
            message = (
                f"metric {name!r} is a loss: in training it is computed after the step has changed "
                f"the weights of {full_name(head)}, and the loss before. Compare both in "
                "validation, where the weights are the same."
            )
        else:
            instead = {"recall": "RecallAtK", "precision": "PrecisionAtK", "entropy": "ExactLoss"}
            known = [own for word, own in instead.items() if word in name.lower()]
            own = known or ["PrecisionAtK", "RecallAtK", "NDCG", "MeanReciprocalRank", "ExactLoss"]
            message = (
                f"metric {name!r} reads all {head.num_classes:,} logits of each example, in "
                "training steps too, in time and memory of [B, C]. Use tlo.metrics."
                f"{' or '.join(own)} instead, which {full_name(head)} serves without them."
            )
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _at_most_one(metric: Any, labels: Labels) -> Check:
    rule = (
        f"metric {metric.name!r}: each example must have at most one label, as Keras's metrics "
        "have it; of several tlo.metrics, such as PrecisionAtK(1) and RecallAtK, are right. Got"
    )
    counts = labels.counts
    return Check(
        tf.reduce_all(counts <= 1),
        lambda: [rule, tf.reduce_max(counts), "labels in example", tf.argmax(counts)],
    )


def _is_one_hot(y_true: Any, output: Any) -> bool:
    """Whether labels are dense rows of numbers, one per class, as Keras's losses take them."""
    shape = tf.TensorShape(getattr(y_true, "shape", None))
    is_array = isinstance(y_true, (tf.Tensor, np.ndarray))
    if not is_array or shape.rank is None or shape.rank <= output.batch_rank:
        return False
    is_wide = y_true.shape[-1] == output.head.num_classes
    return is_wide and (not output.is_asked or tf.as_dtype(y_true.dtype).is_floating)
