# SPDX-License-Identifier: Apache-2.0
"""SelfUpdatingHead: a head that changes its own weights when the gradient comes back."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.distribute.optimizer_parts import with_parts
from tfx_largeout.heads.base import Head
from tfx_largeout.heads.enclosing_fit import enclosing_fit
from tfx_largeout.heads.forward_passes import after_forward_passes, note_forward_pass
from tfx_largeout.heads.model_rate import HIGHEST, ModelRate
from tfx_largeout.heads.update_switch import UpdateSwitch
from tfx_largeout.labels import Labels


class SelfUpdatingHead(Head):
    """Base of the heads whose weight update is part of their method.

    Forward, `forward` gives the statistics; backward, `backward` gets the gradients with respect to
    them, updates the weights, and returns the gradient with respect to h. The model's optimizer
    never sees the weights: subclasses make them with `trainable=False`. A scalar trainable weight,
    `gradient_anchor`, sees to it that the backward pass runs even when nothing below the head is
    trainable. Its value may serve a loss as a learned number; elsewhere its gradient is 0.

    The weights change once for each gradient that is taken through a call with `training=True`:
    once a step in `fit`, once a microbatch with gradient accumulation, twice for a head that a
    model calls twice: there the gradient of h of the one call is taken at the weights that the
    update of the other has left. To look at gradients only, use `without_update`. A head that is
    not `trainable` is not updated; candidates go on being drawn.

    Only losses of its family train it. A gradient with respect to the logits themselves is refused
    in training, as it would train what lies below alone.

    Its learning rate follows that of the model's optimizer, so that `LearningRateScheduler`,
    `ReduceLROnPlateau` and schedules of the model reach the head: see `model_rate`.

    A step that is refused (labels out of range, numbers that are not finite) leaves the head as it
    was. So it does with other heads of the model if it is the labels or h of one of them; if it is
    the gradient, others may have taken their step, and Keras may have counted the step.

    Args:
        num_classes: The number of classes C, at least 2.
        model_rate: The learning rate of the model's optimizer with which the head's own holds.
            While the model's is another, the head's is multiplied by the ratio. Default
            `"highest"`: the highest that the model had in training so far (a warm-up that starts
            below it then leaves the head out, with a warning; give a number). None: the head's
            rate is its own alone, as is one that is a schedule.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer.

    Raises:
        ValueError: `model_rate` is none of these. In a call: the optimizer of the model scales the
            loss (`LossScaleOptimizer`, `loss_scale_factor`), which would multiply the head's steps,
            or averages weights (`use_ema`), which would leave out the head's. (A loss that a loop
            of your own multiplies can't be noticed.)
        TypeError: In a training step: the loss is none of the head's family.
    """

    initial_anchor = 0.0
    # The kinds that `forward` computes and `as_statistics` returns.
    gives: ClassVar[tuple[type, ...]] = ()
    # Names of the losses of the package that train the head, for messages.
    trained_by: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("gives", (None,)):
            raise TypeError(f"gives of {cls.__name__} must name a kind of statistics; got none")

    def __init__(self, num_classes: int, model_rate: Any = HIGHEST, **kwargs: Any) -> None:
        super().__init__(num_classes, **kwargs)
        self._model_rate = ModelRate(self.name, model_rate)
        self._switch = UpdateSwitch()

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.gradient_anchor = self.add_weight(
            name="gradient_anchor",
            shape=(),
            initializer=keras.initializers.Constant(self.initial_anchor),
            dtype="float32",
        )
        number = {"shape": (), "initializer": "zeros", "trainable": False, "autocast": False}
        self.highest_model_rate = self.add_weight(
            name="highest_model_rate", dtype="float32", **number
        )
        self.model_optimizer = self.add_weight(name="model_optimizer", dtype="int64", **number)

    @property
    def model_rate(self) -> float | str | None:
        """The rate of the model with which the head's own holds: see the argument."""
        return self._model_rate.reference

    @property
    def unsaved_variables(self) -> list[tf.Variable]:
        """Variables of a step that need no saving: they bear on warnings and `without_update`."""
        return [self._switch.state, self._model_rate.last_step]

    def forward(
        self, kind: type, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        """Computes the statistics.

        Args:
            kind: Which: one of `gives`.
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
            gradients: The gradients of the loss with respect to each of the statistics.
            update: Whether the head is trainable.
        """
        raise NotImplementedError

    def count_step(self) -> None:
        """Counts a training step, whether the head is trainable or not: draws go by this count."""
        return  # AutoGraph can't convert a method without a statement

    def after_update(self, labels: Labels, residuals: Any) -> None:
        """Does what is due after an update, when the step has been counted.

        Args:
            labels: N examples.
            residuals: What `forward` returned as such.
        """
        return  # as above

    def as_statistics(
        self,
        kind: type,
        labels: Labels,
        values: tuple[tf.Tensor, ...],
        residuals: Any,
        anchor: tf.Tensor,
    ) -> Any:
        """Returns the statistics that the head gives in training.

        Args:
            kind: Which: one of `gives`.
            labels: N examples.
            values: What `forward` returned, with a gradient.
            residuals: What `forward` returned as such.
            anchor: `[]`, the value of `gradient_anchor`, with a gradient.
        """
        return kind(labels, *values)

    def followed(self, learning_rate: Any) -> Any:
        """Returns the rate of the present step: the head's own, times what the model's has changed.

        Args:
            learning_rate: The head's own, a number, a variable, or a tensor.
        """
        factor = self._model_rate.factor(self.highest_model_rate.value)
        if factor is None:
            return learning_rate
        learning_rate = tf.convert_to_tensor(learning_rate)
        return learning_rate * tf.cast(factor, learning_rate.dtype)

    # To Keras and to losses

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """As `Head`."""
        optimizer = self._optimizer_of_model()
        self._refuse_scaling(optimizer)
        self._refuse_averaging(optimizer)
        return super().call(inputs, training=training)

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind not in self.gives or not training:
            return super().statistics(kind, hidden, labels, training)
        residuals: Any = None
        only_look = self._switch.is_off  # the gradient may be taken when it is on again

        @tf.custom_gradient
        def run(hidden: tf.Tensor, anchor: tf.Tensor) -> Any:
            nonlocal residuals
            values, residuals = self.forward(kind, hidden, labels)
            note_forward_pass(values)

            def backward_pass(*gradients: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                with after_forward_passes():
                    hidden_gradient = self._step(
                        hidden, labels, residuals, gradients[:-1], only_look
                    )
                return hidden_gradient, gradients[-1]

            return (*values, tf.identity(anchor)), backward_pass

        *values, anchor = run(hidden, tf.convert_to_tensor(self.gradient_anchor))
        return self.as_statistics(kind, labels, tuple(values), residuals, anchor)

    def without_update(self, draw: int = 0) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which a gradient through the head's statistics changes nothing.

        Entered eagerly it works around `fit` and around any function, traced before or not. Entered
        in a function that is traced, it is for heads that this function itself calls, not for
        functions that it calls. Without a function around, it is enough that the model is called
        in it.

        Raises:
            RuntimeError: It was entered in one function, and the head is called in another one.
        """
        return self._switch.off(draw)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "model_rate": self.model_rate}

    def _optimizer_of_model(self) -> Any:
        """Returns the optimizer of the model that is called, or whose `fit` runs; else None."""
        entry = self._get_call_context().entry_layer
        if isinstance(entry, keras.Model) and getattr(entry, "optimizer", None) is not None:
            return entry.optimizer
        fit = enclosing_fit()  # a `train_step` of the user's own may call layers one by one
        return None if fit is None else fit["self"].optimizer

    def training_logits(self, logits: tf.Tensor) -> tf.Tensor:
        fit = enclosing_fit()
        if fit is not None and fit["self"].optimizer is None:
            raise ValueError(
                f"the model of {type(self).__name__} {self.name!r} must be compiled with an "
                "optimizer, which trains what lies below the head; got optimizer=None"
            )
        highest, kind = self.highest_model_rate.value, self.model_optimizer.value
        if isinstance(kind, tf.Variable):  # none while Keras only finds out shapes
            self._model_rate.meet(self._optimizer_of_model(), highest, kind)

        @tf.custom_gradient
        def without_gradient(logits: tf.Tensor, anchor: tf.Tensor) -> Any:
            def refuse(upstream: tf.Tensor) -> Any:
                raise TypeError(self._refusal_of_logits())

            return tf.identity(logits), refuse

        # The anchor makes sure that somebody asks for the gradient.
        return without_gradient(logits, tf.convert_to_tensor(self.gradient_anchor))

    def _step(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
        only_look: bool,
    ) -> tf.Tensor:
        backward = functools.partial(self.backward, hidden, labels, residuals, gradients)
        if only_look:
            return backward(update=False)

        def train() -> tf.Tensor:
            hidden_gradient = backward(update=self.trainable)
            with tf.control_dependencies([hidden_gradient]):
                self.count_step()
                self._model_rate.note(self.highest_model_rate.value, self.model_optimizer.value)
                if self.trainable:
                    self.after_update(labels, residuals)
                return tf.identity(hidden_gradient)

        return self._switch.either(train, functools.partial(backward, update=False))

    def _refusal_of_logits(self) -> str:
        kinds = " or ".join(kind.__name__ for kind in self.gives)
        losses = f", such as {', '.join(self.trained_by)}" if self.trained_by else ""
        return (
            f"{type(self).__name__} {self.name!r} is trained by losses of {kinds} "
            f"alone{losses}; got a gradient with respect to its logits, as of a Keras loss or of "
            "an activation behind the head, which would train what lies below and never the head. "
            "Compile the model with one of these losses, use DenseHead, or call it with "
            "training=False."
        )

    def _refuse_scaling(self, optimizer: Any) -> None:
        scale = getattr(optimizer, "loss_scale_factor", None)
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or scale is not None:
            got = f"the optimizer {optimizer.name!r}"
            got += f" with loss_scale_factor={scale}" if scale is not None else ""
            raise ValueError(
                f"{type(self).__name__} {self.name!r} updates itself and can't be trained with "
                f"loss scaling; got {got}. Use the policy 'mixed_bfloat16' or 'float32', and an "
                "optimizer that does not scale the loss."
            )

    def _refuse_averaging(self, optimizer: Any) -> None:
        for part in with_parts(optimizer):
            if getattr(part, "use_ema", False):
                raise ValueError(
                    f"{type(self).__name__} {self.name!r} updates itself, and its weights take no "
                    f"part in an average over steps; got the optimizer {part.name!r} with "
                    "use_ema=True. Use an optimizer without it, or DenseHead."
                )
