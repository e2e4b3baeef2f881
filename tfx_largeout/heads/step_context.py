# SPDX-License-Identifier: Apache-2.0
"""StepContext: when a self-updating head takes its step, and by which optimizer's rate and scale.

The model's optimizer trains the hidden layers, and the head takes its step together with the
optimizer's: once, with gradients of the same scale, and not at all if the optimizer skips its step.
Keras calls the constraint of a weight after each step of an optimizer with it, and at no other
time. So the constraint of each head's `gradient_anchor` takes the head's step.

A custom loop, or an optimizer's own `apply`, may multiply gradients. Keras assigns the gradient of
a weight with `overwrite_with_gradient` to it; so each head's `gradient_factor` tells the factor.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import numbers
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import full_name
from tfx_largeout.devices import HOST
from tfx_largeout.distribute.data_parallel import CLIPPING, build_parts, with_parts
from tfx_largeout.heads.kept_passes import BackwardPass, KeptPasses
from tfx_largeout.heads.keras_losses_and_metrics import trains_as_keras_does
from tfx_largeout.keras_internals import (
    applying_optimizer,
    batches_applied,
    calling_model,
    in_train_step,
)
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.tensorflow_internals import is_branch, is_branch_or_loop

_ATTRIBUTE = "_tfx_largeout_steps"
# Options of a model's optimizer: the attribute of the head's optimizer in their place, and advice.
_CLIPS = "row_clip_norm", "to clip rows, use row_clip_norm of its optimizer (not in a FactoredHead)"
_DECAYS = "row_weight_decay", "to decay weights, use weight_decay of the head's optimizer"
_OWN_OPTIONS = {
    **dict.fromkeys((*CLIPPING, "row_clip_norm"), _CLIPS),
    **dict.fromkeys(("weight_decay", "row_weight_decay"), _DECAYS),
}
_DRAWS_OF_PASS = 2**20  # draw numbers between two passes of one step
_GRADIENT_OF_FACTOR = 2.0**-40  # of `gradient_factor`: too small to change a norm
NO_FACTOR = 2.0**-100  # its value where nothing is assigned: too small for a penalty to change it
_FACTORS = 2.0**-24, 2.0**10  # the least and the largest factor to follow


@dataclasses.dataclass(eq=False)
class ForwardPass:
    """A forward pass in training: its graph, and whether it was in `without_update`."""

    graph: Any
    only_looks: bool


class _Step:
    """The state of a head's step while it is traced, or runs eagerly.

    Attributes:
        optimizer: The optimizer of the model that called the head; None without a compiled model.
        follows: Whether the optimizer's step is sure to follow the gradient.
        fuses: Whether the gradient may then take the head's step itself.
        forward_passes: Their number in training.
        pending: For each forward pass with a gradient, the last `BackwardPass` without a step, and
            whether it counts, `[]` bool.
        taken: Whether the gradient took the step.
        kept: What the next pass of this graph that is kept waits for.
    """

    def __init__(self) -> None:
        self.optimizer: Any = None
        self.follows = self.fuses = False
        self.kept: list[tf.Tensor] = []
        self.pending: dict[ForwardPass, tuple[BackwardPass, tf.Tensor]] = {}
        self.begin_anew()

    def begin_anew(self) -> list[tuple[BackwardPass, tf.Tensor]]:
        """Begins the next step; returns the pending passes."""
        pending, self.pending = [*self.pending.values()], {}
        self.forward_passes = 0
        self.taken = False
        return pending


class StepContext(keras.constraints.Constraint):
    """Takes the steps of a head: the constraint of its `gradient_anchor`.

    The gradient leaves a `BackwardPass`. When the optimizer steps, so does the head, with

    - the gradients divided by the loss scale of this step (`LossScaleOptimizer`,
      `loss_scale_factor`), and not at all if `LossScaleOptimizer` skips the step;
    - with `gradient_accumulation_steps=n` the mean of n gradients, in each n-th step;
    - the sum of the gradients of all calls, where a model calls the head several times.

    In `fit` of a model with Keras's `train_step` and an optimizer that neither scales nor
    accumulates, nothing can happen between the gradient and the step. Then a head that is called
    once takes its step with the gradient, in one op that reads its rows of W once, unless it
    `steps_apart`.

    In a custom loop, the head's gradients are multiplied by the factor that the loop applied to the
    others, as `tf.clip_by_global_norm` does (its norm does not contain the head's); not with
    `gradient_accumulation_steps`, nor over workers. The next step begins with a warning if the
    others were changed in another way, such as noise. So it does after a gradient without a
    following optimizer step, which does not change the head. `head.take_step()`, for loops without
    an optimizer, takes the gradients as they were computed.
    """

    def __init__(self, head: Any) -> None:
        self._head = head
        self._eager = _Step()
        self._warned: set[str] = set()
        self._accumulates_for: weakref.ref[Any] | None = None
        self.kept = KeptPasses()
        with tf.init_scope():
            # Gradients without a step so far, in custom loops. -1: the gradients of the last step
            # were changed in a way that the head could not follow.
            self.untaken = tf.Variable(0, trainable=False, dtype=tf.int64, name="untaken")

    @property
    def draw(self) -> tf.Tensor:
        """The number of the draw: each pass of a step has separate candidates."""
        with tf.device(HOST):
            return self.kept.count * _DRAWS_OF_PASS

    # The call, and the forward pass

    @tf.autograph.experimental.do_not_convert
    def call(self, hidden: tf.Tensor) -> None:
        """Records a call of the head in training; raises an error if it can't be trained."""
        head, model, step = self._head, calling_model(self._head), self._step_of_graph()
        compiled = model is not None and model.compiled
        step.optimizer = model.optimizer if compiled else None
        if compiled and step.optimizer is None:
            raise ValueError(
                f"the model of {full_name(head)} must be compiled with an optimizer, which trains "
                "the hidden layers; got optimizer=None"
            )
        step.follows = compiled and trains_as_keras_does(model) and in_train_step()
        if step.follows and not head.update_switch.is_off:
            build_parts(step.optimizer, model)
        self._refuse_averaging(step.optimizer)
        self._warn_of_other_options(step.optimizer)
        if hidden.dtype == tf.float16 and step.optimizer is None:
            raise ValueError(
                f"{full_name(head)} must know the optimizer that scales the loss of float16 "
                "activations; got a call without a compiled model around it. Compile the model "
                "with that optimizer, and call the model, not its layers one by one; or use the "
                "policy 'mixed_bfloat16'."
            )
        step.fuses = step.follows and not any(_defers(p) for p in with_parts(step.optimizer))
        if compiled:
            head.rate_of_model.meet(step.optimizer)

    @tf.autograph.experimental.do_not_convert
    def forward(self) -> ForwardPass:
        """Records a forward pass in training, and returns it for `backward`."""
        step = self._step_of_graph()
        if self._head.update_switch.is_off:
            return ForwardPass(_graph(), True)
        if step.taken:
            raise ValueError(
                f"{full_name(self._head)} must be called before the first gradient of a step of "
                "fit is taken; got another call after it. Take gradients that are not the step's "
                "within `with head.without_update():`, or write a train_step."
            )
        if _skips_steps(step.optimizer):  # it may have skipped the last step
            self.untaken.assign(0)
        elif step.pending:
            self._warn_of_lost_pass()
        elif not step.follows or any(map(_is_foreign, with_parts(step.optimizer))):
            self._tell_of_last_step()
        step.pending = {}
        step.forward_passes += 1
        return ForwardPass(_graph(), False)

    # The gradient

    @tf.autograph.experimental.do_not_convert
    def backward(
        self,
        forward: ForwardPass,
        gone: BackwardPass,
        of_anchor: tf.Tensor,
        look: Callable[[], tf.Tensor] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Takes the step, or keeps the data for it.

        Args:
            forward: The forward pass.
            gone: The pass.
            of_anchor: The gradient with respect to the anchor.
            look: Returns the gradient with respect to h. Default: by `head.backward`.

        Returns:
            The gradients with respect to h, the anchor and the factor. The first two are NaN to
            make an optimizer skip the step, if it skips steps with NaN.
        """
        if self._head.update_switch.is_off:
            forward = ForwardPass(forward.graph, True)
        skips = _skips_steps(self._step_of_graph().optimizer)
        if skips:
            gone, is_finite = gone.without_what_is_not_finite()
        of_hidden = self._gradient(forward, gone, look)
        if skips:
            nan = tf.constant(float("nan"))
            of_hidden = tf.where(is_finite, of_hidden, tf.cast(nan, of_hidden.dtype))
            of_anchor = tf.where(is_finite, of_anchor, tf.cast(nan, of_anchor.dtype))
        with tf.control_dependencies([of_hidden]):  # an error in the step assigns no factor
            factor = tf.constant(0.0 if forward.only_looks else _GRADIENT_OF_FACTOR)
            return of_hidden, of_anchor, tf.identity(factor)

    def _gradient(
        self, forward: ForwardPass, gone: BackwardPass, look: Callable[[], tf.Tensor] | None
    ) -> tf.Tensor:
        head, step = self._head, self._step_of_graph()
        look = look or functools.partial(head.backward, *gone, update=False)
        if forward.only_looks:
            return look()
        is_here = forward.graph is _graph()
        apart = head.steps_apart(gone.residuals)
        fuses = is_here and step.fuses and step.forward_passes == 1 and not apart
        if fuses or not head.trainable:  # a frozen head gets no optimizer step
            step.taken = fuses and head.trainable
            return head.update_switch.either(lambda: self._take(gone, with_gradient=True), look)
        gradient = look()
        counts = head.update_switch.is_on
        with tf.control_dependencies([gradient]):
            # The function of a gradient runs only ops that its result depends on.
            done = []
            if not step.follows:
                done.append(self.untaken.assign_add(tf.cast(counts, tf.int64)))
            if is_here:
                if forward in step.pending:
                    self._warn_of_second_gradient()
                step.pending[forward] = (gone, counts)
            else:  # a gradient through a function: its tensors are not visible outside
                if _skips_steps(step.optimizer) or gone.hidden.dtype == tf.float16:
                    self._refuse_scale_through_functions()
                with tf.control_dependencies(step.kept):
                    step.kept = self._keep([(gone, counts)])
                done += step.kept
        with tf.control_dependencies(done):
            return tf.identity(gradient)

    # The step of the optimizer

    @tf.autograph.experimental.do_not_convert
    def __call__(self, anchor: Any) -> Any:
        """Takes the head's step together with the step of the calling optimizer.

        Returns:
            The value of the `gradient_anchor`, unchanged.

        Raises:
            ValueError: The optimizer averages weights, or scales the loss by an unknown factor.
            tf.errors.InvalidArgumentError: The gradient was computed in another function than the
                optimizer's step.
        """
        applying, step = applying_optimizer(), self._step_around()
        optimizer, was_taken = step.optimizer, step.taken
        pending = step.begin_anew()
        if not was_taken:
            if not _is_part(applying, optimizer):  # `call` has not seen it
                self._refuse_averaging(applying)
                self._warn_of_other_options(applying)
                _refuse_unknown_scale(self._head, pending)
                optimizer = applying
            self._head.rate_of_model.meet(optimizer)
            may_change = not step.follows or any(map(_is_foreign, with_parts(optimizer)))
            scale = _scale_of(optimizer, applying)
            self._take_all(pending, scale, applying, step.follows, may_change)
        return tf.convert_to_tensor(anchor)

    @tf.autograph.experimental.do_not_convert
    def take_step(self) -> None:
        """Takes the step of all kept passes, in a loop without an optimizer."""
        pending = self._step_around().begin_anew()
        self._head.rate_of_model.meet(None)
        self._take_all(pending, 1.0, None, follows=False, may_change=False)

    def _take_all(
        self, pending: list[Any], scale: Any, optimizer: Any, follows: bool, may_change: bool
    ) -> None:
        num_parts = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        if num_parts > 1 or self.kept.has_parts:
            self._begin_for(optimizer)
        change: Any = 1 / scale
        is_lost: Any = False
        if may_change and num_parts == 1 and self._head.workers.size == 1:
            by_others, is_lost = self._factor_by_others([counts for _, counts in pending])
            change *= by_others
        passes = [(gone.scaled(change), counts) for gone, counts in pending]
        if not passes:
            self._refuse_gradient_from_elsewhere()
        if may_change or not follows:
            self.untaken.assign(-tf.cast(is_lost, tf.int64))
        if num_parts == 1 and len(passes) == 1 and not self.kept.has_parts:
            ((gone, counts),) = passes
            tf.cond(counts, lambda: self._take(gone), lambda: tf.constant(0))
            return
        factor: Any = 1 / num_parts
        if not passes:  # all kept passes came through functions, in this step if it is not a part
            if num_parts == 1:
                factor = change
            elif not (isinstance(scale, float) and scale == 1):
                self._refuse_scale_through_functions()
        self._keep(passes)
        with tf.device(HOST):
            is_due = self.kept.count > 0
            if num_parts > 1:
                is_due &= tf.equal((batches_applied(optimizer) + 1) % num_parts, 0)
                self._tell_of_missing(is_due, num_parts)
        tf.cond(is_due, lambda: self._take_kept(factor), lambda: tf.constant(0))

    def _factor_by_others(self, counts: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns by what a custom loop or optimizer multiplied the gradients, `[]` float32.

        Args:
            counts: For each pending pass, whether it counts; others are kept.

        Returns:
            The factor, and whether the gradients were changed in another way, which makes it 1.
        """
        variable = self._head.gradient_factor
        given = tf.identity(variable.value)
        with tf.control_dependencies([given]):
            variable.assign(NO_FACTOR)
        number = tf.cast(self.kept.count, tf.float32)
        number = tf.add_n([number, *(tf.cast(each, tf.float32) for each in counts)])
        factor = given / (_GRADIENT_OF_FACTOR * number)
        is_known = (tf.abs(factor) >= _FACTORS[0]) & (tf.abs(factor) <= _FACTORS[1])
        is_lost = ~is_known & (number > 0) & (given != NO_FACTOR)
        return tf.where(is_known, factor, 1.0), is_lost

    def _warn_of_changed_gradients(self) -> np.int32:
        self._warn_once(
            "gradients were changed before the optimizer's apply in a way that "
            f"{full_name(self._head)} can't follow: it takes its step with its own, unchanged. It "
            f"follows a factor of at least {_FACTORS[0]:g} and at most {_FACTORS[1]:g}, as of "
            "tf.clip_by_global_norm."
        )
        return np.int32(0)

    def _warn_of_second_gradient(self) -> None:
        self._warn_once(
            f"two gradients were taken through one call of {full_name(self._head)}, as of a "
            "persistent tape: it takes its step with the last. Take one gradient, of the sum of "
            "the losses, and others within `with head.without_update():`."
        )

    def _begin_for(self, optimizer: Any) -> None:
        """Drops passes accumulated for another optimizer, such as before a second `compile`."""
        before, self._accumulates_for = self._accumulates_for, weakref.ref(optimizer or self)
        if before is not None and before() is not (optimizer or self):
            with tf.init_scope():
                self.kept.clear()

    def _tell_of_missing(self, is_due: tf.Tensor, num_parts: int) -> None:
        """Warns if a step has fewer gradients than it divides by, as after `load_model`."""
        missing = is_due & (self.kept.count < num_parts)
        warn = functools.partial(
            tf.numpy_function, self._warn_of_missing, [self.kept.count], tf.int32
        )
        tf.cond(missing, warn, lambda: tf.constant(0))

    def _warn_of_missing(self, number: int) -> np.int32:
        self._warn_once(
            f"{full_name(self._head)} takes a step by the gradients of {number} batches, fewer "
            "than gradient_accumulation_steps: those before were lost, as when a model is saved "
            "and loaded in the middle of a step (Checkpoint keeps them), or were taken within "
            "without_update."
        )
        return np.int32(0)

    def _keep(self, passes: Sequence[tuple[BackwardPass, tf.Tensor]]) -> list[tf.Tensor]:
        done: list[tf.Tensor] = []
        packed = [self._head.pack(gone) for gone, _ in passes]
        if len({tuple(part.dtype for part in parts) for parts in packed}) > 1:
            raise ValueError(
                f"{full_name(self._head)} must get losses of one kind of statistics where a model "
                "calls it several times; got several kinds, as with and without label_smoothing"
            )
        for (_, counts), parts in zip(passes, packed, strict=True):

            def keep(parts: Sequence[tf.Tensor] = parts) -> tf.Tensor:
                with tf.control_dependencies(self.kept.append(parts)):
                    return tf.constant(0)

            with tf.control_dependencies(done):  # a branch waits for its condition alone
                done = [tf.cond(tf.identity(counts), keep, lambda: tf.constant(0))]
        return done

    def _take_kept(self, factor: Any) -> tf.Tensor:
        if not self.kept.has_parts:
            return tf.constant(0)
        return self._take(self._head.unpack(self.kept.take()).scaled(factor))

    def _take(self, gone: BackwardPass, with_gradient: bool = False) -> tf.Tensor:
        head = self._head
        gradient = tf.constant(0)
        if with_gradient:
            gradient = head.backward(*gone, update=head.trainable)
        elif head.trainable:
            gradient = head.update_weights(*gone)
        with tf.control_dependencies([gradient]):
            head.count_step()
            head.rate_of_model.note()
            if head.trainable:
                head.after_update(gone.labels, gone.residuals)
            return tf.identity(gradient) if with_gradient else tf.constant(0)

    def _refuse_scale_through_functions(self) -> None:
        raise ValueError(
            f"{full_name(self._head)} must be called in the function that takes the gradient where "
            "a loss is scaled and may be left out or accumulated; got a call within another "
            "tf.function"
        )

    # What is known

    def _step_of_graph(self) -> _Step:
        """The step of the present graph, or of eager code."""
        return self._eager if tf.executing_eagerly() else _step_in(_graph(), self._head)

    def _step_around(self) -> _Step:
        """The step with a gradient of the present graph, or of a graph around it."""
        if tf.executing_eagerly():
            return self._eager
        graph = _graph()
        while True:
            step = _step_in(graph, self._head)
            if step.taken or step.pending:
                return step
            if not is_branch_or_loop(graph):  # a function keeps the graph around it alive
                return self._step_of_graph()
            graph = graph.outer_graph

    def _refuse_averaging(self, optimizer: Any) -> None:
        for part in with_parts(optimizer):
            if getattr(part, "use_ema", False):
                raise ValueError(
                    f"{full_name(self._head)} updates itself, and its weights take no part in an "
                    f"average over steps; got the optimizer {part.name!r} with use_ema=True. Use "
                    "an optimizer without it, or DenseHead."
                )

    def _warn_of_other_options(self, optimizer: Any) -> None:
        """Warns if an optimizer of the model clips gradients or decays weights: not the head's."""
        if not self._head.trainable:
            return
        own = getattr(self._head, "optimizer", None)
        options = itertools.product(with_parts(optimizer), _OWN_OPTIONS.items())
        for part, (option, (of_head, advice)) in options:
            value = getattr(part, option, None)
            is_number = isinstance(value, numbers.Real)  # not a variable
            if value is None or (is_number and not value) or getattr(own, of_head, None):
                continue
            name = option.replace("row_weight", "weight")
            number = f"={value:g}" if is_number else ""
            self._warn_once(
                f"{name}{number} of the model's optimizer does not apply to the weights of classes "
                f"of {full_name(self._head)}, which updates them itself; {advice}.",
                name,
            )

    # Gradients without a step

    def _refuse_gradient_from_elsewhere(self) -> None:
        """Raises an error for a step without a pass if another function computed a gradient."""
        number, rule = self.untaken.read_value(), _ELSEWHERE.format(head=full_name(self._head))
        kept = self.kept.count.read_value()
        with after([Check((number <= 0) | (kept > 0), lambda: [rule, number])]):
            tf.identity(number)

    def _tell_of_last_step(self) -> None:
        """Warns of gradients that were changed, or that no step followed; these are dropped."""

        def warn(untaken: int) -> np.int32:
            return self._warn_of_lost_pass() if untaken > 0 else self._warn_of_changed_gradients()

        def tell() -> tf.Tensor:
            told = tf.numpy_function(warn, [self.untaken.read_value()], tf.int32)
            with tf.control_dependencies([told]):
                self.untaken.assign(0)
                if self.kept.has_parts:
                    self.kept.take()
                return tf.identity(told)

        tf.cond(tf.not_equal(self.untaken, 0), tell, lambda: tf.constant(0))

    def _warn_of_lost_pass(self) -> np.int32:
        self._warn_once(
            f"a gradient was taken through {full_name(self._head)} in training, and no optimizer "
            "has taken its step since: it is dropped. To train, let an optimizer step "
            "with all of model.trainable_variables, or call head.take_step(); to add up gradients "
            "of several batches, give the optimizer gradient_accumulation_steps; to look at a "
            "gradient, take it within `with head.without_update():`."
        )
        return np.int32(0)

    def _warn_once(self, message: str, subject: str = "") -> None:
        if (subject or message) not in self._warned:
            self._warned.add(subject or message)
            warnings.warn(message, RuntimeWarning, stacklevel=3)


_ELSEWHERE = (
    "the gradient through {head} must be taken in the same tf.function as the optimizer's step, or "
    "both eagerly; got gradients that were taken elsewhere:"
)


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _step_in(graph: Any, head: Any) -> _Step:
    steps = getattr(graph, _ATTRIBUTE, None)
    if steps is None:
        steps = weakref.WeakKeyDictionary()
        setattr(graph, _ATTRIBUTE, steps)
    return steps.setdefault(head, _Step())


def _is_part(part: Any, optimizer: Any) -> bool:
    return any(part is each for each in with_parts(optimizer))


def _skips_steps(optimizer: Any) -> bool:
    kind = keras.optimizers.LossScaleOptimizer
    return any(isinstance(part, kind) for part in with_parts(optimizer))


def _is_foreign(optimizer: Any) -> bool:
    """Returns whether neither Keras nor this package wrote an optimizer."""
    return not type(optimizer).__module__.startswith(("keras.", "tfx_largeout."))


def _defers(optimizer: Any) -> bool:
    """Returns whether an optimizer may skip or delay the step of a gradient."""
    if _is_foreign(optimizer):
        return True
    options = ("loss_scale_factor", "gradient_accumulation_steps")
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return scales or any(getattr(optimizer, option, None) for option in options)


def _scale_of(optimizer: Any, applying: Any) -> Any:
    """Returns the factor of the loss, if `applying` applies gradients for `optimizer`."""
    scale = getattr(applying, "loss_scale_factor", None) or 1.0
    for part in with_parts(optimizer):
        if isinstance(part, keras.optimizers.LossScaleOptimizer) and _is_part(applying, part):
            scale = scale * tf.convert_to_tensor(part.dynamic_scale)
    return scale


def _refuse_unknown_scale(head: Any, pending: list[Any]) -> None:
    """Raises an error for a step in a branch, which means an unseen `LossScaleOptimizer`."""
    graph = _graph()
    if is_branch(graph) and pending and pending[0][0].hidden.graph != graph:
        raise ValueError(
            f"{full_name(head)} must know by what the loss is scaled; got the step of an optimizer "
            "in a branch, as of a LossScaleOptimizer that the model was not compiled with. Compile "
            "the model with the optimizer that the loop steps with."
        )
