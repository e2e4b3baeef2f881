# SPDX-License-Identifier: Apache-2.0
"""SelfUpdatingHead: a head that changes its own weights when the gradient comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.heads.base import Head
from tfx_largeout.labels import Labels


class SelfUpdatingHead(Head):
    """Base of the heads whose weight update is part of their method.

    Forward, `forward` gives the statistics; backward, `backward` gets the gradients with respect to
    them, updates the weights, and returns the gradient with respect to h. The model's optimizer
    never sees the weights: subclasses make them with `trainable=False`. A scalar trainable weight,
    `gradient_anchor`, sees to it that the backward pass runs even when nothing below the head is
    trainable. Its value may serve a loss as a learned number; elsewhere its gradient is 0.

    The weights change once for each gradient that is taken through a call of the head: once a step
    in `fit`, once a microbatch with gradient accumulation, twice for a head that a model calls
    twice. A head that is not `trainable` gets `update=False`.

    Raises:
        ValueError: The model that is trained has a `LossScaleOptimizer`: the update would be
            multiplied by the scale. (A loss that a loop of your own multiplies can't be noticed.)
    """

    initial_anchor = 0.0
    _updates = True

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.gradient_anchor = self.add_weight(
            name="gradient_anchor",
            shape=(),
            initializer=keras.initializers.Constant(self.initial_anchor),
            dtype="float32",
        )

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """As `Head`."""
        optimizer = getattr(self._get_call_context().entry_layer, "optimizer", None)
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                f"{type(self).__name__} {self.name!r} updates itself and can't be trained with "
                f"loss scaling; got the optimizer {optimizer.name!r}. Use the policy "
                "'mixed_bfloat16' or 'float32', and an optimizer that does not scale the loss."
            )
        return super().call(inputs, training=training)

    def forward(self, hidden: tf.Tensor, labels: Labels) -> tuple[tuple[tf.Tensor, ...], Any]:
        """Computes the statistics.

        Args:
            hidden: `[N, D]`.
            labels: N examples.

        Returns:
            A tuple of those statistics that have a gradient, and residuals: whatever `backward`
            and `as_statistics` can use again.
        """
        raise NotImplementedError

    def backward(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
        update: bool,
    ) -> tf.Tensor:
        """Updates the weights if `update`, and returns the gradient with respect to `hidden`.

        Args:
            hidden: `[N, D]`.
            labels: N examples.
            residuals: What `forward` returned as such.
            gradients: Of the loss with respect to each of the statistics.
            update: Whether the head is trainable.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def without_update(self, draw: int = 0) -> Iterator[None]:
        """Within it, a gradient through the head's statistics leaves the weights alone."""
        before = self._updates, self.draw
        self._updates, self.draw = False, draw
        try:
            yield
        finally:
            self._updates, self.draw = before

    def statistics(self, hidden: tf.Tensor, labels: Labels) -> Any:
        residuals: Any = None
        update = self.trainable and self._updates

        @tf.custom_gradient
        def run(hidden: tf.Tensor, anchor: tf.Tensor) -> Any:
            nonlocal residuals
            values, residuals = self.forward(hidden, labels)

            def gradient(*gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                hidden_gradient = self.backward(
                    hidden, labels, residuals, gradients[:-1], update=update
                )
                return hidden_gradient, gradients[-1]

            return (*values, tf.identity(anchor)), gradient

        *values, anchor = run(hidden, tf.convert_to_tensor(self.gradient_anchor))
        return self.as_statistics(labels, tuple(values), residuals, anchor)

    def as_statistics(
        self, labels: Labels, values: tuple[tf.Tensor, ...], residuals: Any, anchor: tf.Tensor
    ) -> Any:
        """Returns an instance of `statistics_type`.

        Args:
            labels: N examples.
            values: What `forward` returned, with a gradient.
            residuals: What `forward` returned as such.
            anchor: `[]`, the value of `gradient_anchor`, with a gradient.
        """
        return self.statistics_type(labels, *values)
