# SPDX-License-Identifier: Apache-2.0
"""ConvexLoss: a loss that is convex in the model's output, and its Hessian there."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras import losses

from tfx_largeout.example_weights import example_weights
from tfx_largeout.heads.base import head_output
from tfx_largeout.heads.dense import DenseHead
from tfx_largeout.keras_internals import mask_of
from tfx_largeout.labels import Labels
from tfx_largeout.losses.softmax_crossentropy import SoftmaxCrossentropy

_SUPPORTED = (
    "SparseCategoricalCrossentropy, CategoricalCrossentropy, BinaryCrossentropy or "
    "MeanSquaredError of Keras, or SoftmaxCrossentropy without a penalty and a margin behind a "
    "DenseHead"
)
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


class ConvexLoss:
    """The functions of a loss l(y, z), convex in the output z, for Hessian-free training.

    N elements: the batch dimensions of the output, flattened. A loss that is a sum, or not reduced,
    raises an error: samples of different sizes could not be compared.
    """

    def __init__(self, loss: losses.Loss) -> None:
        if loss.reduction not in _MEANS:
            raise ValueError(
                f"the reduction of the loss must be one of {_MEANS}; got {loss.reduction!r}"
            )
        self.loss = loss

    def output(self, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns z `[..., K]`, in which the loss is convex, from the model's output."""
        return y_pred

    def values(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the losses of the elements, `[N]`."""
        y_pred = _wide(y_pred)
        y_true = tf.cast(y_true, y_pred.dtype)
        if y_true.shape.rank == y_pred.shape.rank - 1:
            y_true = y_true[..., tf.newaxis]
        return tf.reshape(self.loss.call(y_true, y_pred), [-1])

    def hessian_product(self, z: tf.Tensor, tangent: tf.Tensor) -> tf.Tensor:
        """Returns the Hessian of each element's loss at z `[N, K]` times its tangent `[N, K]`."""
        raise NotImplementedError

    def ignored(self, y_true: tf.Tensor, y_pred: tf.Tensor, weights: tf.Tensor) -> tf.Tensor | None:
        """Returns True for elements, with weights `[N]`, that the loss ignores."""
        return None

    def own_weights(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor | None:
        """Returns the loss's weights of the elements, `[N]`, or None."""
        return None

    def weights(
        self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the weight of each element in the sum of losses, and in the divisor, `[N]`."""
        mask = mask_of(y_pred)
        counts = example_weights(y_pred, None, mask)
        weights = example_weights(y_pred, sample_weight, None)
        ignored = self.ignored(y_true, y_pred, weights)
        if ignored is not None:
            counts *= tf.cast(~tf.reshape(ignored, [-1]), counts.dtype)
        weights *= counts
        own = self.own_weights(y_true, y_pred)
        if own is not None:
            weights *= own
        return weights, weights if self.loss.reduction == "mean_with_sample_weight" else counts


class _SquaredError(ConvexLoss):
    def hessian_product(self, z: tf.Tensor, tangent: tf.Tensor) -> tf.Tensor:
        return 2 * tangent / tf.cast(tf.shape(z)[-1], z.dtype)


class _OfSoftmax(ConvexLoss):
    def hessian_product(self, z: tf.Tensor, tangent: tf.Tensor) -> tf.Tensor:
        p = tf.nn.softmax(z)
        weighted = p * tangent
        return weighted - p * tf.reduce_sum(weighted, axis=-1, keepdims=True)


class _CrossEntropy(ConvexLoss):
    """A cross-entropy: convex in the logits, which an activation may follow."""

    activation = ""

    def __init__(self, loss: losses.Loss) -> None:
        super().__init__(loss)
        axis = loss.get_config().get("axis", -1)
        if axis != -1:
            raise ValueError(f"the axis of the loss must be -1, the last one; got {axis}")

    def output(self, y_pred: tf.Tensor) -> tf.Tensor:
        logits = getattr(y_pred, "_keras_logits", None)
        if logits is None and self.loss.get_config()["from_logits"]:
            return y_pred
        if logits is None and y_pred.op.type == self.activation:
            logits = y_pred.op.inputs[0]
        if logits is None:
            raise ValueError(
                f"with from_logits=False, the model's output must come straight out of a "
                f"{self.activation.lower()} activation, before which lie the logits in which "
                f"{self.loss.name} is convex; got the output {y_pred.name!r}. End the model in "
                "such an activation, or in logits with from_logits=True."
            )
        return logits


class _Softmax(_CrossEntropy, _OfSoftmax):
    activation = "Softmax"


class _SparseSoftmax(_Softmax):
    def ignored(self, y_true: tf.Tensor, y_pred: tf.Tensor, weights: tf.Tensor) -> tf.Tensor | None:
        ignored = self.loss.get_config()["ignore_class"]
        return None if ignored is None else y_true == tf.cast(ignored, y_true.dtype)

    def values(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        y_pred = _wide(y_pred)
        if self.loss.get_config()["ignore_class"] is not None:
            y_true = tf.cast(y_true, y_pred.dtype)  # Keras compares it with a float
        return tf.reshape(self.loss.call(y_true, y_pred), [-1])


class _Sigmoid(_CrossEntropy):
    activation = "Sigmoid"

    def hessian_product(self, z: tf.Tensor, tangent: tf.Tensor) -> tf.Tensor:
        p = tf.sigmoid(z)
        return p * (1 - p) * tangent / tf.cast(tf.shape(z)[-1], z.dtype)


class _HeadSoftmax(_OfSoftmax):
    """The exact softmax over all classes of a DenseHead."""

    def output(self, y_pred: tf.Tensor) -> tf.Tensor:
        output = _dense_output(y_pred)
        return output.head.flat_logits(output.flat_hidden, output.head.statistics_dtype)

    def values(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        output = _dense_output(y_pred)
        head, hidden, labels = output.head, output.flat_hidden, self._labels(y_true, y_pred)
        statistics = head.statistics(self.loss.trains_on, hidden, labels, training=True)
        return self.loss.from_statistics(statistics)

    def ignored(self, y_true: tf.Tensor, y_pred: tf.Tensor, weights: tf.Tensor) -> tf.Tensor | None:
        counts = self.loss.counts(self._labels(y_true, y_pred), weights)
        return None if counts is None else ~counts

    def own_weights(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor | None:
        return self._labels(y_true, y_pred).mean_weight

    def _labels(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> Labels:
        output = _dense_output(y_pred).for_loss(self.loss.ignore_class)
        labels = output.labels(y_true)
        if labels.values is not None:
            raise TypeError(
                "labels must be class ids for Hessian-free training; got labels with values, such "
                "as soft labels"
            )
        return self.loss.checked(labels, output.head.num_classes)


_OF_KERAS: dict[type, tuple[Any, type[ConvexLoss]]] = {  # with the function that `get` returns
    losses.SparseCategoricalCrossentropy: (losses.sparse_categorical_crossentropy, _SparseSoftmax),
    losses.CategoricalCrossentropy: (losses.categorical_crossentropy, _Softmax),
    losses.BinaryCrossentropy: (losses.binary_crossentropy, _Sigmoid),
    losses.MeanSquaredError: (losses.mean_squared_error, _SquaredError),
}


def convex_loss(loss: Any) -> ConvexLoss:
    """Returns the `ConvexLoss` of a loss for `compile`: an object, a function or a name."""
    found = losses.get(loss) if isinstance(loss, str) else loss
    if type(found) is SoftmaxCrossentropy and not (found.log_partition_penalty or found.has_margin):
        return _HeadSoftmax(found)
    for of_keras, (function, convex) in _OF_KERAS.items():
        if type(found) is of_keras or found is function:
            return convex(of_keras() if found is function else found)
    raise ValueError(
        f"the loss must be known to be convex in the model's output: {_SUPPORTED}; got {loss!r}"
    )


def _dense_output(y_pred: tf.Tensor) -> Any:
    output = head_output(y_pred)
    if output is None or type(output.head) is not DenseHead:
        found = "no head" if output is None else type(output.head).__name__
        raise ValueError(
            "SoftmaxCrossentropy must stand behind a DenseHead as the model's last layer, for "
            f"Hessian-free training; got {found}"
        )
    output.head.refuse_cosines("Hessian-free training")
    return output


def _wide(y_pred: tf.Tensor) -> tf.Tensor:
    """Casts an output of half precision to float32, as Keras does before the loss."""
    return tf.cast(y_pred, tf.float32) if y_pred.dtype.size < 4 else y_pred
