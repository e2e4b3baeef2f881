# SPDX-License-Identifier: Apache-2.0
"""The best classes of a head: TopK, a layer, and top_k_model, for a whole model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.heads.base import Head, HeadOutput, head_output
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.heads.over_workers import whole_hidden
from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.quantized_rows import QuantizedRows
from tfx_largeout.keras_internals import flat_layers
from tfx_largeout.ops.candidates.top_candidates import top_candidates
from tfx_largeout.statistics import TopScores

SEED = (0, 0)
"""With which an index is asked: the same classes are found each time."""

# This key marks the configuration of an index that is the head's own.
_OF_HEAD = "index_of_head"


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TopK(keras.layers.Layer):
    """The k best classes of a head, without building the logits: exactly, or by an index.

    `scores, ids = TopK(head, k)(h)`: both `[..., k]`, by falling score, without an index ties by
    lower id. The layer shares the head's weights. (`keras.models.clone_model` makes a head of its
    own for it: Keras clones each layer by its configuration.)

    With a `HashIndex`, only the classes that it finds are looked at; they are ranked by their exact
    logits. What the index misses is missing: measure the recall against the exact layer. Where
    fewer than k are found, -inf and -1 follow (0 with an activation).

    With a `RowBounds` the result is that of the exact layer, bit by bit, as long as W is that of
    its last `rebuild`: it does not follow W. It is sooner there for a few examples; with
    `activation="softmax"` it is not, as probabilities need all logits.

    With an `InvertedFile` the result is that of the lists it looks into, and what is in others is
    missing. It does not follow W either, and all classes are looked at with `activation="softmax"`.
    Where several workers have the classes, both give way to the exact pass.

    Cost: O(B C D) time; memory independent of C. With a `HashIndex` O(B `num_found` D).

    Args:
        head: A head.
        k: The number of classes, 1 <= k <= C.
        activation: None for logits (default); `"softmax"` for probabilities among all C classes, or
            with an index among those that it finds; `"sigmoid"` for each class's own logistic
            probability.
        index: `head.index`, which a `SampledHead` may have and keeps up to date; or a
            `HashIndex`, `RowBounds` or `InvertedFile` of your own, after
            `index.rebuild(head.kernel, head.bias)`. Default None: exact.
        num_found: How many classes a `HashIndex` finds at most, k <= `num_found` <= C. Default:
            1,000 or 10 k, the greater, or C.
        **kwargs: `name`, `dtype`, as for any Keras layer.

    Raises:
        TypeError: `head` is not a head, or `index` is no index; at the first call: the head has no
            W to find rows of.
        ValueError: `k`, `activation` or `num_found` is out of range, or `num_found` is given with
            an index that is no `HashIndex`; at the first call: the index was built for a W of
            another shape.
        RuntimeError: At the first call: `index` was not built; or it is a `HashIndex` and not the
            head's own, where several workers have the classes.

    References:
        Vijayanarasimhan, Shlens, Monga, Yagnik 2014, section 3.3.
    """

    def __init__(
        self,
        head: Head,
        k: int,
        activation: str | None = None,
        index: HashIndex | QuantizedRows | None = None,
        num_found: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        if not isinstance(head, Head):
            raise TypeError(f"head must be a Head; got {head!r}")
        self.k = integer_argument("k", k, at_least=1)
        _check_activation(activation)
        if k > head.num_classes:
            raise ValueError(f"k must be at most num_classes={head.num_classes}; got {k}")
        self.head = head
        self.activation = activation
        self.index, self.num_found = index, num_found
        _check_index(index, num_found, self.k)
        _check_num_found(num_found, head.num_classes)
        self.supports_jit = False

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not self.head.built:
            self.head.build(input_shape)

    def call(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        output = HeadOutput(self.head, inputs, training=False)
        return top_classes(output, self.k, self.activation, self.index, self.num_found)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "head": keras.saving.serialize_keras_object(self.head),
            "k": self.k,
            "activation": self.activation,
            "index": _index_config(self.index, [self.head]),
            "num_found": self.num_found,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TopK:
        head = keras.saving.deserialize_keras_object(config["head"])
        index = _index_of_config(config["index"], [head])
        return cls(**{**config, "head": head, "index": index})


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TopKModel(keras.Model):
    """A model that gives `(scores, ids)` of the k best classes: see `top_k_model`."""

    def __init__(
        self,
        model: keras.Model,
        k: int,
        activation: str | None = None,
        index: HashIndex | QuantizedRows | None = None,
        num_found: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # the model casts its inputs itself, or does not
        self.k = integer_argument("k", k, at_least=1)
        _check_activation(activation)
        self.model = model
        self.activation = activation
        self.index, self.num_found = index, num_found
        _check_index(index, num_found, self.k)

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        output = output_of_model(self.model, inputs)
        return top_classes(output, self.k, self.activation, self.index, self.num_found)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "k": self.k,
            "activation": self.activation,
            "index": _index_config(self.index, flat_layers(self.model)),
            "num_found": self.num_found,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TopKModel:
        model = keras.saving.deserialize_keras_object(config["model"])
        index = _index_of_config(config["index"], flat_layers(model))
        return cls(**{**config, "model": model, "index": index})


def top_k_model(
    model: keras.Model,
    k: int,
    activation: str | None = None,
    index: HashIndex | QuantizedRows | None = None,
    num_found: int | None = None,
) -> keras.Model:
    """Returns a model that gives the k best classes of `model`, which ends in a head.

    `top_k_model(model, 5).predict(x)` returns `(scores, ids)`, both `[N, 5]`. It shares the weights
    of `model`, so that it may be made once and used while `model` goes on training.

    Args:
        model: A model (Functional, Sequential, subclassed) whose only output is a head's.
        k: The number of classes, 1 <= k <= C.
        activation: As `TopK`.
        index: As `TopK`.
        num_found: As `TopK`.

    Raises:
        TypeError: `model` does not end in a head. Raised at the first call. Else as `TopK`.
        ValueError: As `TopK`.
    """
    return TopKModel(model, k, activation, index, num_found)


def output_of_model(model: keras.Model, inputs: Any) -> HeadOutput:
    """Returns the output of the head in which a model ends, for evaluation.

    Raises:
        TypeError: `model` does not end in a head.
    """
    return output_of_logits(model(inputs, training=False))


def output_of_logits(logits: Any) -> HeadOutput:
    """As `output_of_model`, of what the model returned."""
    output = head_output(logits)
    if output is None:
        raise TypeError("model must end in a head; got one that ends in something else")
    return output


def top_classes(
    output: HeadOutput,
    k: int,
    activation: str | None = None,
    index: HashIndex | QuantizedRows | None = None,
    num_found: int | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `(scores, ids)`, both `[..., k]`, of the k best classes behind a head's output."""
    if isinstance(index, QuantizedRows):
        scores, ids = _top_of_quantized(output.head, output.flat_hidden, k, index, activation)
        return output.unflatten(scores), output.unflatten(ids)
    if index is None:
        top = output.head.top_k(output.flat_hidden, k)
    else:
        top = _top_found(output.head, output.flat_hidden, k, index, num_found)
    return output.unflatten(_activated(top, activation)), output.unflatten(top.ids)


def _activated(top: TopScores, activation: str | None) -> tf.Tensor:
    if activation == "softmax":
        probabilities = tf.exp(top.scores - top.log_partition[:, tf.newaxis])
        return tf.where(top.ids < 0, tf.zeros_like(top.scores), probabilities)
    return tf.sigmoid(top.scores) if activation == "sigmoid" else top.scores


def _check_activation(activation: str | None) -> None:
    if activation not in (None, "softmax", "sigmoid"):
        raise ValueError(f"activation must be None, 'softmax' or 'sigmoid'; got {activation!r}")


def kernel_head(head: Head, index: HashIndex | QuantizedRows) -> KernelHead:
    """Returns a head whose rows the index is over.

    Raises:
        TypeError: It has none.
        ValueError: The index was built for others.
        RuntimeError: It was not built.
    """
    head = _with_rows(head)
    index.check_built_for(head.kernel)
    return head


def _with_rows(head: Head) -> KernelHead:
    if not isinstance(head, KernelHead):
        raise TypeError(f"an index must go with a head that has W and b; got {type(head).__name__}")
    head.refuse_soft_cap("an index")
    return head


def _top_of_quantized(
    head: Head, hidden: tf.Tensor, k: int, index: QuantizedRows, activation: str | None
) -> tuple[tf.Tensor, tf.Tensor]:
    head = _with_rows(head)
    if head.workers.alone:  # of several, each has other rows than the index
        index.check_built_for(head.kernel)
    if activation == "softmax" or not head.workers.alone:
        top = head.top_k(hidden, k)
        return _activated(top, activation), top.ids
    best = index.top_k(hidden, head.kernel, head.bias, k)
    scores = tf.sigmoid(best.top_scores) if activation == "sigmoid" else best.top_scores
    return scores, best.top_ids


def _top_found(
    head: Head, hidden: tf.Tensor, k: int, index: HashIndex, num_found: int | None
) -> TopScores:
    head = kernel_head(head, index)
    most = most_found(head.num_classes, k, num_found)
    if not head.workers.alone and not is_of(index, head):
        raise RuntimeError(
            "index must be that of the head, where its classes are spread over "
            f"{head.workers.size} workers; got another one"
        )
    batch = whole_hidden(head, hidden)
    if is_of(index, head):
        index.build_once(head.kernel, head.bias)  # The head has perhaps not drawn candidates yet.
    queries = tf.cast(batch.hidden, tf.float32)[:, tf.newaxis]
    found = index.candidates(queries, most, tf.constant(SEED), per_example=True)
    if head.workers.alone:
        return top_candidates(head.kernel, head.bias, hidden, found, k)
    best = head.rows.best_of(batch.hidden, head.kernel, head.bias, found, k)
    return TopScores(*map(batch.of_this_worker, best))


def _check_index(index: Any, num_found: int | None, k: int) -> None:
    if num_found is not None:
        integer_argument("num_found", num_found, at_least=k)
    if index is not None and not isinstance(index, (HashIndex, QuantizedRows)):
        raise TypeError(
            f"index must be a HashIndex, a RowBounds, an InvertedFile or None; got {index!r}"
        )
    if isinstance(index, QuantizedRows) and num_found is not None:
        raise ValueError(
            f"num_found must be None for an index of type {type(index).__name__}; got {num_found}"
        )


def most_found(num_classes: int, k: int, num_found: int | None) -> int:
    """Returns how many classes an index finds at most.

    Raises:
        ValueError: `num_found` is above C.
    """
    _check_num_found(num_found, num_classes)
    return min(max(1000, 10 * k), num_classes) if num_found is None else num_found


def _check_num_found(num_found: int | None, num_classes: int) -> None:
    if num_found is not None and num_found > num_classes:
        raise ValueError(f"num_found must be at most num_classes={num_classes}; got {num_found}")


def is_of(index: HashIndex | QuantizedRows | None, layer: Any) -> bool:
    """Says whether a layer is a head that keeps this index up to date."""
    return index is not None and isinstance(layer, Head) and getattr(layer, "index", None) is index


def _index_config(index: HashIndex | QuantizedRows | None, layers: Iterable[Any]) -> Any:
    """Returns the configuration of an index; of that of a head among the layers, the head's name.

    The loaded layer must share the index of the loaded head, and not get a copy, which training
    would leave behind.
    """
    for layer in layers:
        if is_of(index, layer):
            return {_OF_HEAD: layer.name}
    return keras.saving.serialize_keras_object(index)


def _index_of_config(config: Any, layers: Iterable[Any]) -> HashIndex | QuantizedRows | None:
    """Returns the index for what `_index_config` returned: a new one, or that of the loaded head.

    Raises:
        ValueError: There is no head of that name with an index.
    """
    if not isinstance(config, dict) or _OF_HEAD not in config:
        return keras.saving.deserialize_keras_object(config)
    name = config[_OF_HEAD]
    for layer in layers:
        if isinstance(layer, Head) and layer.name == name:
            index = getattr(layer, "index", None)
            if index is not None:
                return index
    raise ValueError(f"index must be that of a head of the model; got that of {name!r}, not there")
