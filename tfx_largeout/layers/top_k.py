# SPDX-License-Identifier: Apache-2.0
"""The best classes of a head: TopK, a layer, and top_k_model, for a whole model."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.heads.base import Head, HeadOutput, head_output
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.base import SearchIndex
from tfx_largeout.keras_internals import flat_layers
from tfx_largeout.statistics import TopScores

# This key marks the configuration of an index that is the head's own.
_OF_HEAD = "index_of_head"


class _Search(keras.layers.Layer):
    """How many of the best classes are wanted, and how they are found: arguments as `TopK`.

    `_of` is the attribute with the head, or with the model that ends in one.
    """

    _of: ClassVar[str]

    def __init__(
        self,
        k: int,
        activation: str | None,
        index: SearchIndex | None,
        num_found: int | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # a model casts its inputs itself, or does not
        self.k = integer_argument("k", k, at_least=1)
        self.activation = activation_argument(activation)
        if num_found is not None:
            integer_argument("num_found", num_found, at_least=self.k)
        if index is not None and not isinstance(index, SearchIndex):
            raise TypeError(
                f"index must be a HashIndex, a RowBounds, an InvertedFile or None; got {index!r}"
            )
        if num_found is not None and index is not None and not isinstance(index, HashIndex):
            raise ValueError(
                f"num_found must be None for an index of type {type(index).__name__}; "
                f"got {num_found}"
            )
        self.index, self.num_found = index, num_found

    def _check_numbers(self, num_classes: int) -> None:
        for name, value in (("k", self.k), ("num_found", self.num_found)):
            if value is not None and value > num_classes:
                raise ValueError(f"{name} must be at most num_classes={num_classes}; got {value}")

    def best_classes(self, output: HeadOutput) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns `(scores, ids)`, both `[..., k]`, of the k best classes for a head's output."""
        head, hidden = output.head, output.flat_hidden
        self._check_numbers(head.num_classes)
        if self.index is None:
            top = head.top_k(hidden, self.k)
        else:
            top = self.index.search(
                with_rows(head),
                hidden,
                self.k,
                num_found=self.num_found,
                with_partition=self.activation == "softmax",
            )
        return output.unflatten(activated(top, self.activation)), output.unflatten(top.ids)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments; in the place of an index of a head, the head's name.

        The loaded layer must share the index of the loaded head, and not get a copy, which training
        would leave behind.
        """
        owner = getattr(self, self._of)
        index = keras.saving.serialize_keras_object(self.index)
        for layer in flat_layers(owner):
            if is_of(self.index, layer):
                index = {_OF_HEAD: layer.name}
        arguments = {name: getattr(self, name) for name in ("k", "activation", "num_found")}
        owner = keras.saving.serialize_keras_object(owner)
        return {**super().get_config(), self._of: owner, "index": index, **arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        owner = keras.saving.deserialize_keras_object(config[cls._of])
        index = _index_of_config(config["index"], flat_layers(owner))
        return cls(**{**config, cls._of: owner, "index": index})


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TopK(_Search):
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

    _of = "head"

    def __init__(
        self,
        head: Head,
        k: int,
        activation: str | None = None,
        index: SearchIndex | None = None,
        num_found: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(k, activation, index, num_found, **kwargs)
        if not isinstance(head, Head):
            raise TypeError(f"head must be a Head; got {head!r}")
        self._check_numbers(head.num_classes)
        self.head = head
        self.supports_jit = False

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not self.head.built:
            self.head.build(input_shape)

    def call(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.best_classes(HeadOutput(self.head, inputs, training=False))


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TopKModel(_Search, keras.Model):
    """A model that gives `(scores, ids)` of the k best classes: see `top_k_model`."""

    _of = "model"

    def __init__(
        self,
        model: keras.Model,
        k: int,
        activation: str | None = None,
        index: SearchIndex | None = None,
        num_found: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(k, activation, index, num_found, **kwargs)
        self.model = model

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        return self.best_classes(output_of_model(self.model, inputs))


def top_k_model(
    model: keras.Model,
    k: int,
    activation: str | None = None,
    index: SearchIndex | None = None,
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
        raise TypeError(
            "model must end in a head; got one that ends in something else. tlo.replace_output "
            "puts a head in the place of a Dense layer"
        )
    return output


def activation_argument(activation: Any) -> str | None:
    """Returns an argument that says what becomes of the best logits."""
    if activation not in (None, "softmax", "sigmoid"):
        raise ValueError(f"activation must be None, 'softmax' or 'sigmoid'; got {activation!r}")
    return activation


def activated(top: TopScores, activation: str | None) -> tf.Tensor:
    """Returns the scores after an activation, 0 for a class that is missing."""
    if activation == "softmax":
        scores = tf.exp(top.scores - top.log_partition[:, tf.newaxis])
        return tf.where(top.ids < 0, tf.zeros_like(scores), scores)
    return tf.sigmoid(top.scores) if activation == "sigmoid" else top.scores


def with_rows(head: Head) -> KernelHead:
    """Returns a head, if it has rows that an index can be over; else raises a TypeError."""
    if not isinstance(head, KernelHead):
        raise TypeError(f"an index must go with a head that has W and b; got {type(head).__name__}")
    head.refuse_soft_cap("an index")
    return head


def is_of(index: SearchIndex | None, layer: Any) -> bool:
    """Says whether a layer is a head that keeps this index up to date."""
    return index is not None and isinstance(layer, Head) and getattr(layer, "index", None) is index


def _index_of_config(config: Any, layers: list[Any]) -> SearchIndex | None:
    """Returns the index for what `get_config` said: a new one, or that of the loaded head."""
    if not isinstance(config, dict) or _OF_HEAD not in config:
        return keras.saving.deserialize_keras_object(config)
    name = config[_OF_HEAD]
    for layer in layers:
        if isinstance(layer, Head) and layer.name == name:
            index = getattr(layer, "index", None)
            if index is not None:
                return index
    raise ValueError(f"index must be that of a head of the model; got that of {name!r}, not there")
