# SPDX-License-Identifier: Apache-2.0
"""NearestNeighborModel: a softmax pooled with the labels of the nearest training examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, integer_argument, number_argument
from tfx_largeout.heads.base import HeadOutput, examples_that_count
from tfx_largeout.heads.keras_losses_and_metrics import ignored_by_loss_of
from tfx_largeout.labels import PADDING
from tfx_largeout.layers.top_k import output_of_logits
from tfx_largeout.models.example_vectors import (
    Vectors,
    directions,
    finite,
    nearest,
    rows_of,
    shares,
    stored_arrays,
)

_PLAIN_ARGUMENTS = (
    *("k", "num_neighbors", "temperature", "weight", "feature_weight", "floor", "stored"),
)
_BEST_OF_SOFTMAX = 100
_STEPS = 10  # weights are multiples of 1 / _STEPS
_FLOATS = ("hidden", "features", "features_values")  # stored as floats; all else is int64

_Part: TypeAlias = tuple[tf.Tensor, tf.Tensor, tf.Tensor]  # example, class, score of each entry


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NearestNeighborModel(keras.Model):
    """The k best classes by a trained model and by the training examples nearest to x.

    s(c | x) = (1 - w - v) l(softmax_c(W h + b)) + w l(N_c(h)) + v l(N_c(x))
    l(p) = log(1 + p / floor), or p without a floor
    N_c(z) = 1 / m sum_{i in N(z)} a_i 1[c in Y_i]
    a_i = exp(cos(z, z_i) / t) / sum_{j in N(z)} exp(cos(z, z_j) / t)

    h is the input of the model's head, x the input of the model; N(z) are the examples whose z_i
    have the largest cosines with z, above 0, Y_i are their labels, and m is the mean number of
    labels per example, so that N_c sums to about 1 over all classes, or less if no example is near.
    The softmax generalizes over examples, neighbors keep rare cases: with few examples per class
    the mixture is better than either. Neighbors by x find details that training blurs, such as the
    same rare word. The best weights differ between data sets: `choose_weights` finds w and v on
    held-out examples.

    With a floor, classes are ranked by a product of powers of p + floor, a logarithmic opinion
    pool: a class that all three parts find likely is above a class that only one is sure of. floor
    is the value of a part that does not know a class. Without a floor, s is a mixture of
    distributions.

    `adapt` reads the training examples once, after training. All of them are compared with a query.
    The softmax is used for its max(100, k) best classes; for others it counts as 0.

    Cost: `adapt` is a forward pass over the examples; memory 4 D bytes per example, 8 per label,
    and 12 per sparse feature (4 per dense one). A call takes O(B (C + N) D), and sorts about 2 n m
    + 100 classes per example. Neighbors by x take O(B N F) more; by sparse x O(B N), and one
    addition per training example and shared feature.

    Args:
        model: A model whose only output comes from a head. It is shared, not copied.
        k: The number of classes to return, 1 <= k <= C.
        num_neighbors: n, the size of N(z), at most all examples. Default 100.
        temperature: t above 0; smaller values give more weight to the nearest examples. Default
            0.1.
        weight: w, 0 <= w <= 1. Default 0.5.
        feature_weight: v, 0 <= v <= 1 - w. Above 0, x must be one matrix `[B, F]`, dense or sparse
            without duplicate entries, with a row per row of h. Default 0.
        floor: Above 0; with larger values s is closer to a mixture of distributions; None: it is a
            mixture. Default 0.003.
        stored: For loading files: the shapes of the arrays stored by `adapt`, by name. Default
            None.
        **kwargs: As `keras.Model`.

    Raises:
        TypeError: At the first call: the model does not end in a head.
        ValueError: An argument is out of range; with `feature_weight` above 0, x is not a matrix,
            or has another form than in `adapt`.
        RuntimeError: It is called before `adapt`; the classes are spread over several workers.

    References:
        Khandelwal, Levy, Jurafsky, Zettlemoyer, Lewis 2020, Generalization through memorization:
        nearest neighbor language models, equations 2 and 3; here with a floor, cosines instead of
        distances, and sets of labels. Genest, Zidek 1986, Combining probability distributions: the
        logarithmic opinion pool.
    """

    def __init__(
        self,
        model: keras.Model,
        k: int,
        num_neighbors: int = 100,
        temperature: float = 0.1,
        weight: float = 0.5,
        feature_weight: float = 0.0,
        floor: float | None = 0.003,
        stored: Mapping[str, Sequence[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # the model may cast its inputs itself
        self.model = model
        self.k = integer_argument("k", k, at_least=1)
        self.num_neighbors = integer_argument("num_neighbors", num_neighbors, at_least=1)
        self.temperature = number_argument("temperature", temperature, above=0)
        self._set_weights(weight, feature_weight)
        self.floor = None if floor is None else number_argument("floor", floor, above=0)
        self._stored: dict[str, Any] = {}
        if stored is not None:
            self._make_weights({name: tuple(shape) for name, shape in stored.items()})

    def adapt(self, data: Iterable[Any]) -> None:
        """Stores h and the labels of examples.

        Args:
            data: Batches `(x, y)`, such as a `tf.data.Dataset`; read once. Labels in any form of
                the losses; for sparse targets, entries above 0. Examples that a Keras mask leaves
                out are not stored.

        Raises:
            ValueError: A batch is not a pair, or there is no example; the number of examples or
                labels differs from an earlier call.
            tf.errors.InvalidArgumentError: h, or x with `feature_weight` above 0, is not finite.
                After an error the stored examples are unchanged.
        """

        @tf.function(reduce_retracing=True)
        def of_batch(x: Any, y: Any) -> tuple[Any, ...]:
            output, counts = self._output(x)
            vectors = [rows_of(part, counts) for part in self._vectors(output, x)]
            return *vectors, output.labels(y).positive.where(counts).ids

        batches = [of_batch(*pair) for pair in _pairs(data)]
        if not sum(int(batch[0].shape[0]) for batch in batches):
            raise ValueError("data must have at least one example; got none")
        *vectors, ids = zip(*batches, strict=True)
        labels = [batch.numpy() for batch in ids]
        arrays = {
            "label_splits": np.cumsum(
                np.concatenate([[0], *((batch >= 0).sum(axis=1) for batch in labels)])
            ),
            "labels": np.concatenate([batch[batch >= 0] for batch in labels]),
        }
        for name, of_batches in zip(("hidden", "features"), vectors, strict=False):
            arrays.update(stored_arrays(name, list(of_batches)))
        self._make_weights({name: array.shape for name, array in arrays.items()})
        for name, array in arrays.items():
            self._stored[name].assign(array)

    def choose_weights(self, data: Iterable[Any]) -> dict[str, float]:
        """Sets w, and v if features are stored, to the multiples of 0.1 with the best nDCG@k.

        The examples must differ from those passed to `adapt`: each would find itself. Ties go to
        the smallest weights of neighbors.

        Cost: a call per batch, and 66 sorts of all classes found, or 11 without features.

        Args:
            data: Batches `(x, y)` of held-out examples, as for `adapt`; read once.

        Returns:
            `weight`, `feature_weight`, and `ndcg`, the nDCG@k with them.

        Raises:
            RuntimeError: It is called before `adapt`.
            ValueError: A batch is not a pair, or no example has a label. The weights are unchanged.
        """
        if not self._stored:
            raise RuntimeError("adapt must be called before choose_weights: there are no neighbors")

        @tf.function(reduce_retracing=True)
        def of_batch(x: Any, y: Any) -> tuple[Any, ...]:
            output, counts = self._output(x)
            labels = tf.where(counts[:, tf.newaxis], output.labels(y).positive.ids, PADDING)
            return *self._evidence(output, x), labels, output.head.num_classes

        batches = [_HeldOut.of(*map(np.asarray, of_batch(*pair))) for pair in _pairs(data)]
        weight, feature_weight, ndcg = _best_weights(batches, self.k)
        self._set_weights(weight, feature_weight)
        return {"weight": weight, "feature_weight": feature_weight, "ndcg": ndcg}

    @property
    def weight(self) -> float:
        """w, which may be set."""
        return self._weights[0]

    @weight.setter
    def weight(self, weight: float) -> None:
        self._set_weights(weight, self.feature_weight)

    @property
    def feature_weight(self) -> float:
        """v, which may be set."""
        return self._weights[1]

    @feature_weight.setter
    def feature_weight(self, feature_weight: float) -> None:
        self._set_weights(self.weight, feature_weight)

    def build(self, input_shape: Any) -> None:
        """Called by Keras before the first call."""
        if not self._stored:
            raise RuntimeError("adapt must be called before the model is: there are no neighbors")
        self.built = True

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns `(s, ids)`, both `[..., k]`, by falling s, ties by lower id."""
        output, _ = self._output(inputs)
        keys, evidence = self._evidence(output, inputs)
        rest = max(0.0, 1 - self.weight - self.feature_weight)
        weights = tf.constant([rest, self.weight, self.feature_weight][: evidence.shape[1]])
        scores = tf.reduce_sum(weights * evidence, axis=1)
        rows, ids = keys // output.head.num_classes, keys % output.head.num_classes
        scores, ids = _best(rows, ids, scores, tf.shape(output.flat_hidden)[0], self.k)
        return output.unflatten(scores), output.unflatten(ids)

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        arguments = {name: getattr(self, name) for name in _PLAIN_ARGUMENTS}
        return {**super().get_config(), "model": model, **arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> NearestNeighborModel:
        return cls(**{**config, "model": keras.saving.deserialize_keras_object(config["model"])})

    @property
    def stored(self) -> dict[str, tuple[int, ...]] | None:
        """The shapes of the arrays stored by `adapt`; None before."""
        return {name: tuple(array.shape) for name, array in self._stored.items()} or None

    @property
    def _has_features(self) -> bool:
        """Whether x is used: `adapt` stored it, or will."""
        stored = self._stored
        return bool(self.feature_weight) or "features" in stored or "features_splits" in stored

    def _set_weights(self, weight: float, feature_weight: float) -> None:
        weight = number_argument("weight", weight, at_least=0, at_most=1)
        feature_weight = number_argument("feature_weight", feature_weight, at_least=0)
        if weight + feature_weight > 1 + 1e-9:
            raise ValueError(
                f"feature_weight must be at most 1 - weight, with weight={weight}; "
                f"got {feature_weight}"
            )
        self._weights: tuple[float, float] = (weight, feature_weight)
        self.predict_function = None  # it was traced with the old weights

    def _make_weights(self, shapes: dict[str, tuple[int, ...]]) -> None:
        if self.stored not in (None, shapes):
            raise ValueError(
                "data must have as many examples, labels and features as at the call before, "
                f"{self.stored}; got {shapes}: make another {type(self).__name__}"
            )
        for name, shape in shapes.items() if not self._stored else ():
            dtype = "float32" if name in _FLOATS else "int64"
            self._stored[name] = self.add_weight(
                name=name,
                shape=shape,
                dtype=dtype,
                initializer="zeros",
                trainable=False,
                autocast=False,
            )

    def _vectors(self, output: HeadOutput, x: Any) -> list[Vectors]:
        """Returns the query vectors for neighbors: h, and x if it is used."""
        vectors = [directions(finite("h", output.flat_hidden))]
        if self._has_features:
            shape = getattr(x, "shape", None)
            if shape is None or len(shape) != 2 or len(output.hidden.shape) != 2:
                got = type(x).__name__ if shape is None else f"shape {tuple(shape)}"
                raise ValueError(
                    "x must be one matrix [B, F] with a row for each of h where feature_weight > 0;"
                    f" got {got}"
                )
            is_sparse = isinstance(x, tf.SparseTensor)
            self._check_features(is_sparse, x.shape[1])
            vectors.append(directions(finite("x", x if is_sparse else tf.convert_to_tensor(x))))
        return vectors

    def _check_features(self, is_sparse: bool, width: int) -> None:
        """Raises an error if features differ in kind from the stored ones (if any)."""
        if self.stored is None:
            return
        if "features_splits" in self.stored:
            kind, stored_width = "sparse", self.stored["features_splits"][0] - 1
        elif "features" in self.stored:
            kind, stored_width = "dense", self.stored["features"][1]
        else:
            raise ValueError(
                "feature_weight must be 0, as it was when adapt was called: no features are "
                f"stored; got {self.feature_weight}"
            )
        got = "sparse" if is_sparse else "dense"
        if got != kind:
            raise ValueError(f"x must be {kind}, as adapt saw it; got a {got} tensor")
        if width != stored_width:
            raise ValueError(f"x must have the {stored_width} features that adapt saw; got {width}")

    def _output(self, inputs: Any) -> tuple[HeadOutput, tf.Tensor]:
        """Returns the head's output, and which examples its Keras mask keeps."""
        logits = self.model(inputs, training=False)
        output = output_of_logits(logits).for_metric(ignored_by_loss_of(self.model))
        output.head.workers.refuse_several(
            f"{type(self).__name__} must be used in one process; got a head whose classes are "
            f"spread over {output.head.workers.size} workers: load its file in one"
        )
        at_most_classes("k", self.k, output.head.num_classes)
        return output, examples_that_count(logits, output)

    def _evidence(self, output: HeadOutput, x: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the found classes, as `_class_by_class`, with l(p) for the scores p of parts.

        The parts are the softmax, neighbors by h and, if they are stored, by x.
        """
        vectors = zip(("hidden", "features"), self._vectors(output, x), strict=False)
        parts = [_softmax(output, self.k), *(self._neighbors(*named) for named in vectors)]
        keys, scores = _class_by_class(parts, output.head.num_classes)
        return keys, scores if self.floor is None else tf.math.log1p(scores / self.floor)

    def _neighbors(self, name: str, vectors: Vectors) -> _Part:
        splits, labels = (
            tf.convert_to_tensor(self._stored[name]) for name in ("label_splits", "labels")
        )
        num_examples, num_entries = splits.shape[0] - 1, labels.shape[0]
        n = min(self.num_neighbors, num_examples)
        cosines, examples = nearest(name, self._stored, vectors, num_examples, n)
        share = tf.reshape(shares(cosines, self.temperature), [-1])
        examples = tf.reshape(examples, [-1])
        entries = tf.ragged.range(tf.gather(splits, examples), tf.gather(splits, examples + 1))
        neighbor = entries.value_rowids()
        scores = num_examples / max(num_entries, 1) * tf.gather(share, neighbor)
        return neighbor // n, tf.gather(labels, entries.values), scores


def _pairs(data: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(f"data must be pairs (x, y); got {type(batch).__name__}")
        yield batch[0], batch[1]


def _softmax(output: HeadOutput, k: int) -> _Part:
    best = min(max(k, _BEST_OF_SOFTMAX), output.head.num_classes)
    top = output.head.top_k(output.flat_hidden, best)
    probabilities = tf.exp(top.scores - top.log_partition[:, tf.newaxis])
    rows = tf.repeat(tf.range(tf.shape(output.flat_hidden)[0]), best)
    return rows, tf.reshape(top.ids, [-1]), tf.cast(tf.reshape(probabilities, [-1]), tf.float32)


def _class_by_class(parts: list[_Part], num_classes: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns found classes as rows * num_classes + classes `[E]`, rising, and their scores.

    Scores are `[E, parts]`: 0 if a part did not find the class, and summed if it did several times.
    """
    keys = [tf.cast(rows, tf.int64) * num_classes + ids for rows, ids, _ in parts]
    columns = [
        scores[:, tf.newaxis] * tf.one_hot(part, len(parts))
        for part, (_, _, scores) in enumerate(parts)
    ]
    keys, scores = tf.concat(keys, 0), tf.concat(columns, 0)
    order = tf.argsort(keys, stable=True)
    keys = tf.gather(keys, order)
    is_new = tf.concat([[True], keys[1:] != keys[:-1]], 0)[: tf.size(keys)]
    places = tf.cumsum(tf.cast(is_new, tf.int32)) - 1
    return tf.boolean_mask(keys, is_new), tf.math.segment_sum(tf.gather(scores, order), places)


def _best(
    rows: tf.Tensor, ids: tf.Tensor, scores: tf.Tensor, num_rows: tf.Tensor, k: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k largest scores of each row, and their classes; a row has at least k."""
    num_rows = tf.cast(num_rows, tf.int64)
    scores, ids = (
        tf.RaggedTensor.from_value_rowids(values, rows, num_rows).to_tensor(-1)
        for values in (scores, ids)
    )
    top = tf.math.top_k(tf.pad(scores, [[0, 0], [0, k]]), k)  # also for no rows
    return top.values, tf.gather(ids, top.indices, batch_dims=1)


class _HeldOut(NamedTuple):
    """The scores of a mixture's parts for a batch of examples, per class: entries `[E]`."""

    rows: np.ndarray  # the example of each entry, rising
    ranks: np.ndarray  # its place in its example, by rising class
    scores: np.ndarray  # the parts' scores of its class, [E, parts]
    hits: np.ndarray  # whether the class is a label of the example
    num_labels: np.ndarray  # the number of labels per example, [B]

    @classmethod
    def of(
        cls, keys: np.ndarray, scores: np.ndarray, labels: np.ndarray, num_classes: np.ndarray
    ) -> _HeldOut:
        """Creates it from keys, example * num_classes + class, and labels `[B, K]`, or -1."""
        example, _ = np.nonzero(labels >= 0)
        hits = np.isin(keys, example * num_classes + labels[labels >= 0])
        rows = keys // num_classes
        ranks = np.arange(len(rows)) - np.searchsorted(rows, rows)
        return cls(rows, ranks, scores, hits, (labels >= 0).sum(axis=1))


def _best_weights(batches: list[_HeldOut], k: int) -> tuple[float, float, float]:
    """Returns the weights w and v with the best nDCG@k, and that nDCG@k.

    The mixture is (1 - w - v, w, v) of three parts, (1 - w, w) of two; ties go to the least w + v,
    then the least v. Examples without labels do not count.
    """
    if not any((batch.num_labels > 0).any() for batch in batches):
        raise ValueError("data must have at least one example with a label; got none")
    num_parts = batches[0].scores.shape[1]
    steps = range(_STEPS + 1)
    pairs = [(i, j) for i in steps for j in steps if i + j <= _STEPS and (num_parts == 3 or not j)]
    best = (-1.0, 0, 0)
    for i, j in sorted(pairs, key=lambda pair: (sum(pair), pair[1])):
        weights = np.array([_STEPS - i - j, i, j][:num_parts], np.float32) / _STEPS
        ndcg = _ndcg(batches, weights, k)
        if ndcg > best[0]:
            best = ndcg, i, j
    return best[1] / _STEPS, best[2] / _STEPS, best[0]


def _ndcg(batches: list[_HeldOut], weights: np.ndarray, k: int) -> float:
    discounts = 1 / np.log2(np.arange(k) + 2)
    ideal = np.append(np.nan, np.cumsum(discounts))
    sums, number = 0.0, 0
    for rows, ranks, scores, hits, num_labels in batches:
        order = np.lexsort((-(scores @ weights), rows))  # stable: ties by lower class
        first = ranks < k
        gains = np.bincount(
            rows[first], discounts[ranks[first]] * hits[order][first], len(num_labels)
        )
        some = num_labels > 0
        sums += float((gains[some] / ideal[np.minimum(num_labels[some], k)]).sum())
        number += int(some.sum())
    return sums / number
