# SPDX-License-Identifier: Apache-2.0
"""The best classes of a head: TopK, a layer, and top_k_model, for a whole model."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.heads.base import Head, HeadOutput, head_output
from tfx_largeout.integer_argument import integer_argument


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TopK(keras.layers.Layer):
    """The k best classes of a head, exactly, without building the logits.

    `scores, ids = TopK(head, k)(h)`: both `[..., k]`, by falling score, ties by lower id. The
    layer shares the head's weights. (`keras.models.clone_model` makes a head of its own for it:
    Keras clones each layer by its configuration.)

    Cost: O(B C D) time; memory independent of C.

    Args:
        head: A head.
        k: The number of classes, 1 <= k <= C.
        activation: None for logits (default); `"softmax"` for probabilities among all C classes;
            `"sigmoid"` for each class's own logistic probability.
        **kwargs: `name`, `dtype`, as for any Keras layer.

    Raises:
        TypeError: `head` is not a head.
        ValueError: `k` or `activation` is out of range.
    """

    def __init__(self, head: Head, k: int, activation: str | None = None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        if not isinstance(head, Head):
            raise TypeError(f"head must be a Head; got {head!r}")
        self.k = integer_argument("k", k, at_least=1)
        _check_activation(activation)
        if k > head.num_classes:
            raise ValueError(f"k must be at most num_classes={head.num_classes}; got {k}")
        self.head = head
        self.activation = activation
        self.supports_jit = False

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not self.head.built:
            self.head.build(input_shape)

    def call(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return top_classes(HeadOutput(self.head, inputs, training=False), self.k, self.activation)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        head = keras.saving.serialize_keras_object(self.head)
        return {**config, "head": head, "k": self.k, "activation": self.activation}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TopK:
        return cls(**{**config, "head": keras.saving.deserialize_keras_object(config["head"])})


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TopKModel(keras.Model):
    """A model that gives `(scores, ids)` of the k best classes: see `top_k_model`."""

    def __init__(
        self, model: keras.Model, k: int, activation: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.k = integer_argument("k", k, at_least=1)
        _check_activation(activation)
        self.model = model
        self.activation = activation

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        y_pred = self.model(inputs, training=False)
        output = head_output(y_pred)
        if output is None:
            raise TypeError("model must end in a head; got one that ends in something else")
        return top_classes(output, self.k, self.activation)

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        config = {**super().get_config(), "model": model}
        return {**config, "k": self.k, "activation": self.activation}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TopKModel:
        return cls(**{**config, "model": keras.saving.deserialize_keras_object(config["model"])})


def top_k_model(model: keras.Model, k: int, activation: str | None = None) -> keras.Model:
    """Returns a model that gives the k best classes of `model`, which ends in a head.

    `top_k_model(model, 5).predict(x)` returns `(scores, ids)`, both `[N, 5]`. It shares the weights
    of `model`, so that it may be made once and used while `model` goes on training.

    Args:
        model: A model (Functional, Sequential, subclassed) whose only output is a head's.
        k: The number of classes, 1 <= k <= C.
        activation: As `TopK`.

    Raises:
        TypeError: `model` does not end in a head. Raised at the first call.
        ValueError: `k` or `activation` is out of range.
    """
    return TopKModel(model, k, activation)


def top_classes(
    output: HeadOutput, k: int, activation: str | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `(scores, ids)`, both `[..., k]`, of the k best classes behind a head's output."""
    top = output.head.top_k(output.flat_hidden, k)
    scores = top.scores
    if activation == "softmax":
        scores = tf.exp(scores - top.log_partition[:, tf.newaxis])
    elif activation == "sigmoid":
        scores = tf.sigmoid(scores)
    return output.unflatten(scores), output.unflatten(top.ids)


def _check_activation(activation: str | None) -> None:
    if activation not in (None, "softmax", "sigmoid"):
        raise ValueError(f"activation must be None, 'softmax' or 'sigmoid'; got {activation!r}")
