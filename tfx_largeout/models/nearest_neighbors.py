# SPDX-License-Identifier: Apache-2.0
"""NearestNeighborModel: a softmax, mixed with the labels of the nearest training examples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument, number_argument
from tfx_largeout.heads.base import HeadOutput
from tfx_largeout.layers.top_k import output_of_model
from tfx_largeout.ops.exact.streamed_logits import streamed_logits

_BEST_OF_SOFTMAX = 100


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NearestNeighborModel(keras.Model):
    """The k best classes by a trained model and by the training examples that are nearest to x.

    p(c | x) = (1 - w) softmax_c(W h + b) + w / m sum_{i in N(x)} a_i 1[c in Y_i]
    a_i = exp(cos(h, h_i) / t) / sum_{j in N(x)} exp(cos(h, h_j) / t)

    h is what the head of the model gets, N(x) are the examples whose h_i have the largest cosine
    with it, Y_i their labels, and m is the mean number of labels of an example, so that the p of
    all classes add up to about 1. The softmax knows what examples have in common, neighbors what
    is rare: with few examples a class the mixture is better than either.

    `adapt` looks at the training examples once, after training. All of them are compared with x.
    Of the softmax the 100 best classes count, or k, if that is more; that of others is taken for 0.

    Cost: `adapt` is a forward pass over the examples; 4 D bytes an example, 8 a label. A call takes
    O(B (C + N) D), and sorts about n m + 100 classes of an example.

    Args:
        model: A model whose only output is a head's. It is shared, not copied.
        k: How many classes to return, 1 <= k <= C.
        num_neighbors: n, the size of N(x), or all examples, if they are fewer. Default 100.
        temperature: t above 0: the smaller, the more the nearest count. Default 0.1.
        weight: w, 0 <= w <= 1. Default 0.5.
        stored: What `adapt` has stored, for files: the numbers of examples and of their labels, and
            the width D. Default: nothing.
        **kwargs: As `keras.Model`.

    Raises:
        TypeError: At the first call: the model does not end in a head.
        ValueError: An argument is out of range.
        RuntimeError: It is called before `adapt`; the classes are spread over several workers.

    References:
        Khandelwal, Levy, Jurafsky, Zettlemoyer, Lewis 2020, Generalization through memorization:
        nearest neighbor language models, equations 2 and 3, with cosines for their distances and
        with sets of labels.
    """

    def __init__(
        self,
        model: keras.Model,
        k: int,
        num_neighbors: int = 100,
        temperature: float = 0.1,
        weight: float = 0.5,
        stored: Iterable[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.k = integer_argument("k", k, at_least=1)
        self.num_neighbors = integer_argument("num_neighbors", num_neighbors, at_least=1)
        self.temperature = number_argument("temperature", temperature, above=0)
        self.weight = number_argument("weight", weight, at_least=0, at_most=1)
        self.stored: tuple[int, ...] | None = None
        if stored is not None:
            self._make_weights(*stored)

    def adapt(self, data: Iterable[Any]) -> None:
        """Stores h and the labels of examples.

        Args:
            data: Batches `(x, y)`, such as a `tf.data.Dataset`; gone through once. Labels in any
                form that the losses take.

        Raises:
            ValueError: A batch is not a pair, or there is no example; other numbers of examples or
                labels than at an earlier call.
        """

        @tf.function(reduce_retracing=True)
        def hidden_and_labels(x: Any, y: Any) -> tuple[tf.Tensor, tf.Tensor]:
            output = self._output(x)
            return _directions(output), output.labels(y).ids

        hidden, counts, labels = [], [np.zeros(1, np.int64)], []
        for batch in data:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise ValueError(f"data must be pairs (x, y); got {type(batch).__name__}")
            h, ids = (tensor.numpy() for tensor in hidden_and_labels(*batch))
            hidden.append(h)
            counts.append((ids >= 0).sum(axis=1))
            labels.append(ids[ids >= 0])
        if not sum(map(len, hidden)):
            raise ValueError("data must have at least one example; got none")
        examples, entries = np.concatenate(hidden), np.concatenate(labels)
        self._make_weights(len(examples), len(entries), examples.shape[1])
        self._examples.assign(examples)
        self._splits.assign(np.cumsum(np.concatenate(counts)))
        self._labels.assign(entries)

    def build(self, input_shape: Any) -> None:
        """As Keras calls it before the first call."""
        if self.stored is None:
            raise RuntimeError("adapt must be called before the model is: there are no neighbors")
        self.built = True

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns `(p, ids)`, both `[..., k]`, by falling p, ties by lower id."""
        output = self._output(inputs)
        classes = _Sums(output.head.num_classes, tf.shape(output.flat_hidden)[0])
        self._add_softmax(output, classes)
        self._add_neighbors(output, classes)
        scores, ids = classes.best(self.k)
        return output.unflatten(scores), output.unflatten(ids)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "k": self.k,
            "num_neighbors": self.num_neighbors,
            "temperature": self.temperature,
            "weight": self.weight,
            "stored": self.stored,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> NearestNeighborModel:
        return cls(**{**config, "model": keras.saving.deserialize_keras_object(config["model"])})

    def _make_weights(self, num_examples: int, num_entries: int, width: int) -> None:
        stored = (int(num_examples), int(num_entries), int(width))
        if self.stored not in (None, stored):
            raise ValueError(
                "data must have as many examples and labels as at the call before, "
                f"{self.stored}; got {stored}: make another {type(self).__name__}"
            )
        if self.stored is None:

            def add(name: str, shape: list[int], dtype: str) -> Any:
                return self.add_weight(
                    name=name, shape=shape, dtype=dtype, initializer="zeros", trainable=False
                )

            self._examples = add("examples", [num_examples, width], "float32")
            self._splits = add("label_splits", [num_examples + 1], "int64")
            self._labels = add("labels", [num_entries], "int64")
            self.stored = stored

    def _output(self, inputs: Any) -> HeadOutput:
        output = output_of_model(self.model, inputs)
        if not output.head.workers.alone:
            raise RuntimeError(
                f"{type(self).__name__} must be used in one process; got a head whose classes are "
                f"spread over {output.head.workers.size} workers: load its file in one"
            )
        if self.k > output.head.num_classes:
            raise ValueError(
                f"k must be at most num_classes={output.head.num_classes}; got {self.k}"
            )
        return output

    def _add_softmax(self, output: HeadOutput, classes: _Sums) -> None:
        best = min(max(self.k, _BEST_OF_SOFTMAX), output.head.num_classes)
        top = output.head.top_k(output.flat_hidden, best)
        probabilities = tf.exp(top.scores - top.log_partition[:, tf.newaxis])
        rows = tf.repeat(tf.range(classes.num_rows), best)
        classes.add(rows, top.ids, (1 - self.weight) * tf.cast(probabilities, tf.float32))

    def _add_neighbors(self, output: HeadOutput, classes: _Sums) -> None:
        assert self.stored is not None  # as `build` asks for
        num_examples, num_entries, _ = self.stored
        n = min(self.num_neighbors, num_examples)
        nobody = tf.zeros([classes.num_rows, 0], tf.int64)
        near = streamed_logits(_directions(output), self._examples, None, nobody, n)
        share = tf.reshape(tf.nn.softmax(near.top_scores / self.temperature), [-1])
        examples = tf.reshape(near.top_ids, [-1])
        splits = tf.convert_to_tensor(self._splits)
        entries = tf.ragged.range(tf.gather(splits, examples), tf.gather(splits, examples + 1))
        neighbor = entries.value_rowids()
        per_label = self.weight * num_examples / max(num_entries, 1)
        classes.add(
            neighbor // n,
            tf.gather(tf.convert_to_tensor(self._labels), entries.values),
            per_label * tf.gather(share, neighbor),
        )


class _Sums:
    """Scores of a few classes of each row, added up."""

    def __init__(self, num_classes: int, num_rows: tf.Tensor) -> None:
        self.num_classes, self.num_rows = num_classes, num_rows
        self._keys: list[tf.Tensor] = []
        self._scores: list[tf.Tensor] = []

    def add(self, rows: tf.Tensor, ids: tf.Tensor, scores: tf.Tensor) -> None:
        ids = tf.reshape(ids, [-1])
        self._keys.append(tf.cast(rows, tf.int64) * self.num_classes + ids)
        self._scores.append(tf.reshape(scores, [-1]))

    def best(self, k: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The k largest sums of each row, which has as many classes."""
        keys, scores = tf.concat(self._keys, 0), tf.concat(self._scores, 0)
        order = tf.argsort(keys, stable=True)
        keys = tf.gather(keys, order)
        is_new = tf.concat([[True], keys[1:] != keys[:-1]], 0)[: tf.size(keys)]
        sums = tf.math.segment_sum(
            tf.gather(scores, order), tf.cumsum(tf.cast(is_new, tf.int32)) - 1
        )
        keys = tf.boolean_mask(keys, is_new)
        rows, ids = keys // self.num_classes, keys % self.num_classes
        num_rows = tf.cast(self.num_rows, tf.int64)
        scores, ids = (
            tf.RaggedTensor.from_value_rowids(values, rows, num_rows).to_tensor(-1)
            for values in (sums, ids)
        )
        top = tf.math.top_k(tf.pad(scores, [[0, 0], [0, k]]), k)  # also where there is no row
        return top.values, tf.gather(ids, top.indices, batch_dims=1)


def _directions(output: HeadOutput) -> tf.Tensor:
    """Returns h at length 1, `[N, D]` float32."""
    return tf.math.l2_normalize(tf.cast(output.flat_hidden, tf.float32), axis=1)
