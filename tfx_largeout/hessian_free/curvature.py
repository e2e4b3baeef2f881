# SPDX-License-Identifier: Apache-2.0
"""Curvature: loss, gradient and Gauss-Newton products of a model on a batch."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfx_largeout.arguments import full_name
from tfx_largeout.heads.keras_losses_and_metrics import only_loss
from tfx_largeout.hessian_free.convex_loss import convex_loss
from tfx_largeout.hessian_free.flat_parameters import FlatParameters
from tfx_largeout.keras_internals import flat_layers

_DIFFERENT_IN_TRAINING = (
    keras.layers.BatchNormalization,
    keras.layers.Dropout,
    keras.layers.AlphaDropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)


class LossSums(NamedTuple):
    """Sums over a batch (tensors), or over all examples of a sample (floats).

    Attributes:
        loss: `[]` float64, the sum of weighted losses.
        weight: `[]` float64, its divisor.
    """

    loss: tf.Tensor | float
    weight: tf.Tensor | float


class VectorSums(NamedTuple):
    """Sums over a batch.

    Attributes:
        vector: `[n]`, the sum of gradients or products.
        loss: `[]` float64, the sum of weighted losses; 0 for products.
        weight: `[]` float64, the divisor of both.
    """

    vector: tf.Tensor
    loss: tf.Tensor
    weight: tf.Tensor


class Curvature:
    """Sums of losses, gradients and Gauss-Newton products, each traced once.

    With the output z(theta) of an example and the Hessian H of its loss in z, the Gauss-Newton
    matrix is G = sum J^T H J, J = dz/dtheta. A product G v is one forward-mode pass (J v), H by its
    formula, and one reverse pass: no matrix is built. G is positive semi-definite, since the loss
    is convex in z. For cross-entropies z are the logits, even if the model ends in a softmax or
    sigmoid activation.

    If forward mode fails (recurrent layers inside `tf.function`), J v is instead the gradient of u
    -> (J^T u)^T v, by two reverse passes; see `mode`.

    All passes use `training=False`: dropout does nothing, and batch normalisation uses its moving
    averages without updating them (with a warning). Sample weights and masks are as in Keras.
    Batches may be of any size.

    Cost: a product takes about 1.7 times as long as a gradient (benchmarks/hessian_free.py), with
    the memory of a gradient; two to four times with recurrent layers.

    Args:
        model: A compiled and built Keras model with one output.
        spec: x, y and sample weights as `tf.TensorSpec`, with None for the size of the batch:
            `Examples.spec`.
        mode: `"forward"` or `"reverse"` to insist on one of the two. Default None: forward, if it
            can be traced.

    Attributes:
        parameters: `FlatParameters` of the model's trainable weights.
        mode: `"forward"`, `"reverse"`, or None before the first product.

    Raises:
        ValueError: The model is not compiled, has no trainable weights, several outputs, other
            losses, or a loss that isn't known to be convex in its output; `mode` is unknown.
    """

    def __init__(self, model: keras.Model, spec: Any, mode: str | None = None) -> None:
        if mode not in (None, "forward", "reverse"):
            raise ValueError(f"mode must be 'forward', 'reverse' or None; got {mode!r}")
        self.model, self.mode = model, mode
        self._loss = convex_loss(_compiled_loss(model))
        self.parameters = FlatParameters(model.trainable_variables)
        _refuse_constraints(model)
        _warn_of_different_layers(model)
        vector = tf.TensorSpec([self.parameters.size], self.parameters.dtype)
        self._signature = [*spec, vector]
        self.loss = tf.function(self._loss_sums, input_signature=spec)
        self.gradient = tf.function(self._gradient_sums, input_signature=spec)
        self._product: Any = None

    @property
    def traces(self) -> int:
        """The number of traces of one of the functions."""
        functions = [f for f in (self.loss, self.gradient, self._product) if f is not None]
        return sum(function.experimental_get_tracing_count() for function in functions)

    def product(self, x: Any, y: tf.Tensor, weights: tf.Tensor, vector: tf.Tensor) -> VectorSums:
        """Returns the sum of the Gauss-Newton products of the examples of a batch.

        Args:
            x: Inputs of B examples.
            y: Their targets.
            weights: Their sample weights.
            vector: v `[n]`.
        """
        if self._product is None:
            self._product = self._traced_product()
        return self._product(x, y, weights, vector)

    def _traced_product(self) -> Any:
        if self.mode != "reverse":
            function = self._product_by(self._forward_tangent)
            try:
                function.get_concrete_function()
            except Exception:  # ops without forward mode raise different errors
                if self.mode == "forward":
                    raise
            else:
                self.mode = "forward"
                return function
        self.mode = "reverse"
        return self._product_by(self._reverse_tangent)

    def _product_by(self, tangent: Any) -> Any:
        def product(x: Any, y: tf.Tensor, weights: tf.Tensor, vector: tf.Tensor) -> VectorSums:
            tape, z, along, factors, counts = tangent(x, y, weights, vector)
            product = self._loss.hessian_product(z, along) * tf.cast(factors, z.dtype)[:, None]
            sums = tape.gradient(
                z, self.parameters.variables, output_gradients=tf.stop_gradient(product)
            )
            zero = tf.zeros([], tf.float64)
            return VectorSums(self.parameters.join(sums), zero, tf.reduce_sum(counts))

        return tf.function(product, input_signature=self._signature)

    def _forward_tangent(self, x: Any, y: tf.Tensor, weights: tf.Tensor, vector: tf.Tensor) -> Any:
        variables = self.parameters.variables
        tangents = self.parameters.split(vector)
        with (
            tf.autodiff.ForwardAccumulator(variables, tangents) as accumulator,
            tf.GradientTape() as tape,
        ):
            z, factors, counts = self._output(x, y, weights)
        along = accumulator.jvp(z, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tape, z, along, factors, counts

    def _reverse_tangent(self, x: Any, y: tf.Tensor, weights: tf.Tensor, vector: tf.Tensor) -> Any:
        variables = self.parameters.variables
        with tf.GradientTape() as outer:
            with tf.GradientTape(persistent=True) as tape:
                z, factors, counts = self._output(x, y, weights)
            covector = tf.zeros_like(z)
            outer.watch(covector)
            gradient = tape.gradient(z, variables, output_gradients=covector)
            slope = tf.reduce_sum(self.parameters.join(gradient) * vector)
        return tape, z, outer.gradient(slope, covector), factors, counts

    def _loss_sums(self, x: Any, y: tf.Tensor, weights: tf.Tensor) -> LossSums:
        y_pred, _ = self._call(x)
        factors, counts = self._loss.weights(y, y_pred, weights)
        values = tf.cast(self._loss.values(y, y_pred), factors.dtype)
        return LossSums(tf.reduce_sum(factors * values), tf.reduce_sum(counts))

    def _gradient_sums(self, x: Any, y: tf.Tensor, weights: tf.Tensor) -> VectorSums:
        with tf.GradientTape() as tape:
            sums = self._loss_sums(x, y, weights)
        gradient = tape.gradient(sums.loss, self.parameters.variables)
        return VectorSums(self.parameters.join(gradient), sums.loss, sums.weight)

    def _output(self, x: Any, y: tf.Tensor, weights: tf.Tensor) -> Any:
        """Returns z `[N, K]`, in float32 or float64, and the weights of the elements."""
        y_pred, z = self._call(x)
        z = tf.cast(z, self.parameters.dtype)
        return tf.reshape(z, [-1, z.shape[-1]]), *self._loss.weights(y, y_pred, weights)

    def _call(self, x: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the model's output, and z `[..., K]`."""
        y_pred = self.model(x, training=False)
        if not tf.is_tensor(y_pred):
            raise ValueError(f"the model must have one output; got a {type(y_pred).__name__}")
        if y_pred.shape.rank is None or y_pred.shape.rank < 2:
            raise ValueError(
                "the model's output must have a batch dimension and another last dimension; "
                f"got the shape {y_pred.shape}"
            )
        regularized = [v for v in self.model.trainable_variables if v.regularizer is not None]
        if len(self.model.losses) > len(regularized):
            raise ValueError(
                "the model must have no losses but the one of compile and the regularizers of its "
                "weights, as others may not be convex; got activity regularizers or add_loss"
            )
        return y_pred, self._loss.output(y_pred)


def _compiled_loss(model: keras.Model) -> Any:
    if not getattr(model, "compiled", False) or model.loss is None:
        raise ValueError("the model must be compiled with a loss; call model.compile(loss=...)")
    loss = only_loss(model)
    if keras.tree.is_nested(loss):
        raise ValueError(f"the model must be compiled with a single loss; got {loss!r}")
    if model.get_compile_config().get("loss_weights") is not None:
        raise ValueError("the model must be compiled without loss_weights; got some")
    return loss


def _refuse_constraints(model: keras.Model) -> None:
    for variable in model.trainable_variables:
        if variable.constraint is not None:
            raise ValueError(
                "weights must have no constraint, which a step would not keep to; got "
                f"{variable.constraint!r} on {variable.path}"
            )


def _warn_of_different_layers(model: keras.Model) -> None:
    layers = [la for la in flat_layers(model) if isinstance(la, _DIFFERENT_IN_TRAINING)]
    if layers:
        names = ", ".join(full_name(layer) for layer in layers)
        warnings.warn(
            "Hessian-free training calls the model with training=False, where dropout does "
            "nothing and batch normalisation uses moving averages that nothing updates. "
            f"Such layers: {names}",
            RuntimeWarning,
            stacklevel=4,
        )
