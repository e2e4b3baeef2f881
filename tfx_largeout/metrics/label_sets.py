# SPDX-License-Identifier: Apache-2.0
"""Precision, recall and F1 of the predicted label sets."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, integer_argument, number_argument
from tfx_largeout.example_weights import example_weights
from tfx_largeout.heads.base import HeadOutput, head_output
from tfx_largeout.keras_internals import mask_of
from tfx_largeout.labels import Labels, normalize_labels
from tfx_largeout.metrics.base import EvaluationMetric
from tfx_largeout.ops.exact.ranks_from_logits import best_columns
from tfx_largeout.statistics import TopScores

_SCORES = ("logit", "sigmoid", "softmax")
_NAME = "label_set"
_KINDS = ("precision", "recall", "f1")


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LabelSetF1(EvaluationMetric):
    """Micro and macro precision, recall and F1 of the predicted label sets.

    The predicted labels of an example are its k best classes with a score of at least a threshold.
    With TP_c the number of examples with label c for which c is predicted, P_c the number for which
    c is predicted, and Y_c the number with label c:

        micro: precision = sum TP / sum P, recall = sum TP / sum Y, F1 = 2 sum TP / (sum P + sum Y)
        macro: the means of TP_c / P_c, TP_c / Y_c and 2 TP_c / (P_c + Y_c), with 0 / 0 = 0,
               over the classes with P_c + Y_c > 0

    `result()` is a dict of the six, such as `micro_precision` and `macro_f1`, with a `name` such as
    `{name}_macro_f1`: if a model has several, name each one. Examples without labels count, as
    nothing should be predicted for them; leave out padding of sequences by a Keras mask, weights of
    0, or `ignore_class` of a loss of `tlo.losses` (all without labels, if it is negative). Training
    steps of a model with a head are left out, as in `ExactMetric`.

    Cost: an exact pass for the k best, O(N C D), and O(N k K); 24 bytes per class.

    Args:
        num_classes: C.
        k: The largest number of labels predicted per example, 1 <= k <= C. Default 5.
        threshold: The smallest score of a predicted label. Default None: all k are predicted.
        score: The score for `threshold`: `"logit"`, `"sigmoid"` (default) or `"softmax"`, the
            probability among all C classes.
        name: A prefix of the names of the results. Default None.
        dtype: As any Keras metric.

    Raises:
        ValueError: An argument breaks its rule; the model has another number of classes.

    References:
        Yang, An evaluation of statistical approaches to text categorization, 1999.
    """

    def __init__(
        self,
        num_classes: int,
        k: int = 5,
        threshold: float | None = None,
        score: str = "sigmoid",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name or _NAME, dtype)
        self.num_classes = integer_argument("num_classes", num_classes, at_least=2)
        self.k = integer_argument("k", k, at_least=1, at_most=self.num_classes)
        self.threshold = None if threshold is None else number_argument("threshold", threshold)
        self.score = choice_argument("score", score, _SCORES)
        self.right, self.given, self.had = (
            self.add_variable((self.num_classes,), "zeros", dtype="float64", name=name)
            for name in ("right", "given", "had")
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch: arguments as `ExactMetric`."""
        y_pred = tf.convert_to_tensor(y_pred)
        output, mask = head_output(y_pred), mask_of(y_pred)
        num_classes = y_pred.shape[-1] if output is None else output.head.num_classes
        if num_classes != self.num_classes:
            raise ValueError(
                f"num_classes must be as in the model, {num_classes}; got {self.num_classes}"
            )
        if output is not None and output.training:
            self.skip()
            return
        batch = y_pred if output is None else output.hidden
        if output is None:
            best = _best_of_logits(y_pred, self.k)
            labels = normalize_labels(y_true, num_classes, tf.shape(y_pred)[:-1])
        else:
            best, labels = self._best_of_head(output), output.for_metric().labels(y_true)
        weights = example_weights(batch, sample_weight, mask)
        if output is not None and (ignored := output.ignored_by_loss) is not None:
            weights = tf.where(_is_counted(output, y_true, labels, ignored), weights, 0)
        labels = labels.positive
        is_given = (best.ids >= 0) & self._is_enough(best)
        hits = tf.equal(best.ids[:, :, tf.newaxis], labels.ids[:, tf.newaxis])
        is_right = is_given & tf.reduce_any(hits, axis=2)
        for counts, ids, counted in (
            (self.right, best.ids, is_right),
            (self.given, best.ids, is_given),
            (self.had, labels.ids, labels.mask),
        ):
            each = tf.where(counted, weights[:, tf.newaxis], 0)
            places = tf.reshape(tf.maximum(ids, 0), [-1])
            more = tf.math.unsorted_segment_sum(tf.reshape(each, [-1]), places, num_classes)
            counts.assign_add(more)
        self.was_updated.assign(True)

    def result(self) -> dict[str, tf.Tensor]:
        """Returns the six; before any example 0; in training an empty dict."""
        if self._skips():
            return {}
        right, given, had = (
            keras.ops.convert_to_tensor(x) for x in (self.right, self.given, self.had)
        )
        there = tf.cast(given + had > 0, tf.float64)

        def mean(values: tf.Tensor) -> tf.Tensor:
            return tf.math.divide_no_nan(tf.reduce_sum(values * there), tf.reduce_sum(there))

        found = {}
        for kind in _KINDS:
            of_class = _ratio(kind, right, given, had)
            sums = (tf.reduce_sum(x) for x in (right, given, had))
            found[f"micro_{kind}"] = _ratio(kind, *sums)
            found[f"macro_{kind}"] = mean(of_class)
        prefix = "" if self.name == _NAME else f"{self.name}_"
        return {prefix + name: tf.cast(value, self.dtype) for name, value in found.items()}

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make an equal metric."""
        own = {name: getattr(self, name) for name in ("num_classes", "k", "threshold", "score")}
        return {**super().get_config(), **own}

    def _best_of_head(self, output: HeadOutput) -> TopScores:
        output.head.workers.refuse_several(
            f"{type(self).__name__} must be updated in a single process; got "
            f"{output.head.workers.size} workers"
        )
        return output.head.top_k(output.flat_hidden, self.k)

    def _is_enough(self, best: TopScores) -> tf.Tensor:
        if self.threshold is None:
            return tf.ones_like(best.ids, tf.bool)
        scores = tf.cast(best.scores, tf.float64)
        if self.score == "sigmoid":
            scores = tf.sigmoid(scores)
        elif self.score == "softmax":
            scores = tf.exp(scores - tf.cast(best.log_partition, tf.float64)[:, tf.newaxis])
        return scores >= self.threshold


def _ratio(kind: str, right: tf.Tensor, given: tf.Tensor, had: tf.Tensor) -> tf.Tensor:
    if kind == "f1":
        return tf.math.divide_no_nan(2 * right, given + had)
    return tf.math.divide_no_nan(right, given if kind == "precision" else had)


def _is_counted(output: HeadOutput, y_true: Any, labels: Labels, ignored: int) -> tf.Tensor:
    """Returns the examples that had more than the loss's `ignore_class`, or no label, `[N]`."""
    is_counted = tf.reduce_any(labels.mask, axis=1)
    if ignored >= 0:  # else it is another mark of no label
        is_counted |= tf.reduce_all(output.labels(y_true).ids != ignored, axis=1)
    return is_counted


def _best_of_logits(logits: tf.Tensor, k: int) -> TopScores:
    flat = tf.reshape(logits, [-1, logits.shape[-1]])
    ids = best_columns(flat, k)
    scores = tf.gather(flat, ids, batch_dims=1)
    return TopScores(scores, tf.cast(ids, tf.int64), tf.reduce_logsumexp(flat, axis=1))
