# SPDX-License-Identifier: Apache-2.0
"""SelfUpdatingHead: a head that changes its own weights when the gradient comes back."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, full_name, number_or
from tfx_largeout.devices import HOST
from tfx_largeout.heads.base import Head
from tfx_largeout.heads.kept_passes import BackwardPass
from tfx_largeout.heads.keras_losses_and_metrics import losses_of
from tfx_largeout.heads.model_rate import HIGHEST, ModelRate
from tfx_largeout.heads.step_context import NO_FACTOR, StepContext
from tfx_largeout.heads.update_switch import UpdateSwitch
from tfx_largeout.labels import Labels
from tfx_largeout.statistics import only_first_derivative


class SelfUpdatingHead(Head):
    """Base of the heads whose weight update is part of their method.

    Forward, `forward` gives the statistics; backward, `backward` gets the gradients with respect to
    them, updates the weights, and returns the gradient with respect to h. The model's optimizer
    never sees the weights: subclasses make them with `trainable=False`. A scalar trainable weight,
    `gradient_anchor`, makes the backward pass run even when no hidden layer is
    trainable. Its value may serve a loss as a learned number; elsewhere its gradient is 0.

    The head takes its step together with the optimizer that trains the hidden layers: once, with
    gradients that are accumulated, divided by a loss scale or left out in the same way. See
    `StepContext`. A head that a model calls several times takes one step by all of its gradients.
    A gradient without a following optimizer step changes nothing; to look at gradients, use
    `without_update`. A head that is not `trainable` is not updated, but still draws candidates.

    Only losses of the head's family train it. A gradient with respect to the logits themselves
    raises a TypeError in training, as it would train the hidden layers alone.

    Its learning rate follows the model's optimizer, so `LearningRateScheduler`, `ReduceLROnPlateau`
    and schedules of the model also act on the head: see `model_rate`.

    A step that raises an error (labels out of range, numbers that are not finite) leaves all heads
    of the model as they were; if a gradient is not finite, other heads may have taken their step.

    Args:
        num_classes: The number of classes C, at least 2.
        model_rate: A reference for the learning rate of the model's optimizer: the head's rate is
            multiplied by (the model's present rate) / `model_rate`. Default `"highest"`: the
            highest rate that the model had in training so far. (A warm-up starts below it; then a
            warning says that the head does not follow it. Give a number.) None: neither the head's
            rate nor a schedule of the head follows.
        device: `"cpu"`: weights, state and index are in host memory, and the head computes there,
            on whatever device the trunk is: h is copied to the host, dL/dh back, O(N D) per step,
            and the logits of candidates for the loss. For a head that is too large for a GPU.
            Default None: where TensorFlow places it.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer.

    Raises:
        ValueError: `model_rate` is none of these. In training: the optimizer averages weights
            (`use_ema`), which would leave out the head's weights; the head or its weights have a
            Keras regularizer or constraint; or see `StepContext`.
        TypeError: In a training step: the loss does not belong to the head's family.
    """

    # The initial value of `gradient_anchor`, which may serve a loss as log Z.
    initial_log_partition: float = 0.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("gives", (None,)):
            raise TypeError(f"gives of {cls.__name__} must name a kind of statistics; got none")

    def __init__(
        self,
        num_classes: int,
        model_rate: Any = HIGHEST,
        device: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, **kwargs)
        self.device = device if device is None else choice_argument("device", device, ("cpu",))
        self.model_rate = number_or("model_rate", model_rate, (HIGHEST, None), above=0)
        self.rate_of_model = ModelRate(self)
        self.update_switch = UpdateSwitch()
        self.step_context = StepContext(self)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.gradient_anchor = self.add_weight(
            name="gradient_anchor",
            shape=(),
            initializer=keras.initializers.Constant(self.initial_log_partition),
            dtype="float32",
            constraint=self.step_context,
        )
        self.gradient_factor = self.add_weight(
            name="gradient_factor",
            shape=(),
            initializer=keras.initializers.Constant(NO_FACTOR),
            dtype="float32",
            autocast=False,
        )
        self.gradient_factor.overwrite_with_gradient = True
        self.highest_model_rate = self.add_state("highest_model_rate", dtype="float32")
        self.model_optimizer = self.add_state("model_optimizer", dtype="int64")

    @property
    def unsaved_variables(self) -> list[tf.Variable]:
        """Variables of a step that are not saved: they serve warnings and `without_update`."""
        kept = self.step_context.kept
        unsaved = [] if kept.has_parts else kept.variables
        return [self.update_switch.state, self.step_context.untaken, *unsaved]

    @property
    def kept_variables(self) -> list[tf.Variable]:
        """Data kept for the next step when gradients are accumulated: state, but not weights."""
        kept = self.step_context.kept
        return kept.variables if kept.has_parts else []

    def backward(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
        update: bool,
    ) -> tf.Tensor:
        """Updates the weights if `update`, and returns the gradient with respect to `hidden`.

        A trainable head may first be called for the gradient alone, and then for both. The other
        arguments are as in a `BackwardPass`.
        """
        raise NotImplementedError

    def update_weights(
        self, hidden: tf.Tensor, labels: Labels, residuals: Any, gradients: tuple[tf.Tensor, ...]
    ) -> tf.Tensor:
        """Updates the weights as `backward` does; returns something that waits for it.

        A head may leave out the gradient with respect to `hidden` here: it is not used.
        """
        return self.backward(hidden, labels, residuals, gradients, True)

    def steps_apart(self, residuals: Any) -> bool:
        """Whether a step always takes the gradient alone, and then `update_weights`.

        Other workers and hidden layers go on with the gradient while rows are updated.
        """
        return False

    def pack(self, gone: BackwardPass) -> tuple[tf.Tensor, ...]:
        """Returns the data of a pass that a step needs, so that passes can be concatenated.

        A head implements this and `unpack` if a model may call it several times, or train it with
        `gradient_accumulation_steps`.

        Returns:
            Tensors `[N, ...]`, h `[N, D]` first. Integers are padded by -1, floats by 0.
        """
        raise NotImplementedError(
            f"{full_name(self)} must write `pack` and `unpack` to take one step by several "
            "gradients, as of gradient_accumulation_steps, or of several calls"
        )

    def unpack(self, parts: Sequence[tf.Tensor]) -> BackwardPass:
        """Returns a pass for `backward` from packed tensors of one or more passes."""
        raise NotImplementedError

    def take_step(self) -> None:
        """Takes the head's step with the gradients computed so far, without an optimizer.

        For loops that train only the head, or train the rest without Keras's optimizers. The rate
        is `head.optimizer`'s.
        """
        self.step_context.take_step()

    def count_step(self) -> None:
        """Counts a training step, even if the head is not trainable: draws depend on this count."""
        return  # AutoGraph can't convert a method without a statement

    def after_update(self, labels: Labels, residuals: Any) -> None:
        """Called after an update, once the step has been counted."""
        return  # as above

    def followed(self, learning_rate: Any) -> Any:
        """Returns the head's rate times the change of the model's rate."""
        factor = self.rate_of_model.factor()
        if factor is None:
            return learning_rate
        learning_rate = tf.convert_to_tensor(learning_rate)
        return learning_rate * tf.cast(factor, learning_rate.dtype)

    # To Keras and to losses

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind not in self.gives or not training:
            return super().statistics(kind, hidden, labels, training)
        residuals: Any = None
        forward = self.step_context.forward()

        @tf.custom_gradient
        def run(hidden: tf.Tensor, anchor: tf.Tensor, factor: tf.Tensor) -> Any:
            nonlocal residuals
            values, residuals = self.forward(kind, hidden, labels)
            # A persistent tape around a function looks for derivatives of the gradient.
            residuals = tf.nest.map_structure(
                lambda part: tf.stop_gradient(part) if isinstance(part, tf.Tensor) else part,
                residuals,
            )
            note_forward_pass(values)

            def backward_pass(*gradients: tf.Tensor) -> tuple[tf.Tensor, ...]:
                gone = BackwardPass(hidden, labels, residuals, gradients[:-1])
                with after_forward_passes():
                    of_hidden, *others = self.step_context.backward(forward, gone, gradients[-1])
                of_hidden = only_first_derivative(full_name(self), of_hidden, hidden, anchor)
                return of_hidden, *others

            return (*values, tf.identity(anchor)), backward_pass

        anchor = self.workers.by_group(tf.convert_to_tensor(self.gradient_anchor))
        *values, anchor = run(hidden, anchor, tf.convert_to_tensor(self.gradient_factor))
        return self.as_statistics(kind, labels, tuple(values), residuals, anchor)

    def without_update(self, draw: int = 0) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which a gradient through the head's statistics changes nothing.

        Entered eagerly, it works around `fit` and around any function, traced before or not.
        Entered while a function is traced, it covers heads that this function calls directly, not
        heads in functions that it calls. Outside of any function, only the call of the model has to
        be in it.

        Raises:
            RuntimeError: It was entered in one function, and the head is called in another one.
        """
        return self.update_switch.off(draw)

    @property
    def draw(self) -> tf.Tensor:
        """The number of the present pass's draw: see `seed_of_step`."""
        with tf.device(HOST):
            return self.update_switch.draw + self.step_context.draw

    def training_logits(self, logits: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        self._refuse_penalties()
        self.step_context.call(hidden)

        @tf.custom_gradient
        def without_gradient(logits: tf.Tensor, anchor: tf.Tensor) -> Any:
            def refuse(upstream: tf.Tensor) -> Any:
                raise TypeError(self._refusal_of_logits())

            return tf.identity(logits), refuse

        # The anchor ensures that the gradient is computed.
        return without_gradient(logits, tf.convert_to_tensor(self.gradient_anchor))

    def _refuse_penalties(self) -> None:
        """Raises an error for what Keras applies to logits, or to weights that it trains."""
        weights = [weight for weight in self.weights if weight is not self.gradient_anchor]
        of_weights = itertools.product(weights, ("regularizer", "constraint"))
        for owner, name in ((self, "activity_regularizer"), *of_weights):
            value = getattr(owner, name, None)
            if value is not None:
                raise ValueError(
                    f"{name} of {owner.path!r} must be None, as {full_name(self)} updates its "
                    f"weights itself; got {value!r}. Use options of its own optimizer, such as "
                    "weight_decay, or DenseHead."
                )

    def _refusal_of_logits(self) -> str:
        kinds = " or ".join(kind.__name__ for kind in self.gives)
        known = losses_of(self.gives)
        losses = f", such as {', '.join(known)}" if known else ""
        return (
            f"{full_name(self)} is trained by losses of {kinds} alone{losses}; got a gradient with "
            "respect to its logits, as of a Keras loss or of an activation behind the head, which "
            "would train hidden layers and never the head. Compile the model with one of these "
            "losses, use DenseHead, or call it with training=False."
        )


_ATTRIBUTE = "_tfx_largeout_forward_passes"


def note_forward_pass(values: Sequence[tf.Tensor]) -> None:
    """Records the statistics of a head in the present graph.

    Eagerly there is nothing to do: all forward passes have run before the first gradient.
    """
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        setattr(graph, _ATTRIBUTE, [*getattr(graph, _ATTRIBUTE, []), *values])


def after_forward_passes() -> AbstractContextManager:
    """Returns a scope whose ops run after all forward passes in this graph so far."""
    if tf.executing_eagerly():
        return tf.control_dependencies([])
    graph = tf.compat.v1.get_default_graph()
    return tf.control_dependencies(getattr(graph, _ATTRIBUTE, []))
