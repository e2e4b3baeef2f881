# SPDX-License-Identifier: Apache-2.0
"""Trainer: trains Keras models by Gauss-Newton steps of conjugate gradients."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import (
    flag_argument,
    instance_argument,
    integer_argument,
    number_argument,
)
from tfx_largeout.distribute.meeting import END_OF_FIT, TRAIN, together
from tfx_largeout.distribute.workers import Workers, current
from tfx_largeout.hessian_free.agreement import (
    SITE,
    agree_on_arguments,
    check_alike,
    same_start,
    same_validation,
)
from tfx_largeout.hessian_free.conjugate_gradient import CGStatistics, conjugate_gradient
from tfx_largeout.hessian_free.examples import examples_of
from tfx_largeout.hessian_free.line_search import LevenbergMarquardt, Step, best_step
from tfx_largeout.hessian_free.objective import Gradient, MakeWorker, Objective, make_objective
from tfx_largeout.hessian_free.preconditioners import IdentityPreconditioner, Preconditioner
from tfx_largeout.hessian_free.samples import FixedSample, SampleSchedule
from tfx_largeout.hessian_free.state import TrainerState
from tfx_largeout.hessian_free.worker import LocalWorker

_START_DECAY = 0.95
_MOST_REFUSALS = 2


class Trainer:
    """Hessian-free training of a Keras model, with implicit preconditioning and growing samples.

    An iteration, which counts as an epoch:

    1. g, the gradient of the mean loss on a sample S_g.
    2. Conjugate gradients on (G + lambda I) d = -g from d_0, with the Gauss-Newton matrix G on
       another sample S_c. They minimize q(d) = g^T d + d^T (G + lambda I) d / 2, and return
       iterates d_1, d_2, ...
    3. Line search: from the last iterate back to the one with the least loss L on the line search
       data; then shorter steps alpha, until L(theta + alpha d_i) <= L(theta) + 0.01 alpha g^T d_i.
    4. theta <- theta + alpha d_i, d_0 <- 0.95 times the last iterate, and the damping follows
       rho = (L(theta + d_i) - L(theta)) / q(d_i): see `LevenbergMarquardt`.

    If no step lowers L, or a number is not finite, theta does not change, d_0 <- 0 and lambda
    rises. The gradient is used again, unless a larger sample is due, or a sample of only some
    examples has failed twice: then its gradient may not be a descent direction.

    With several workers (`tlo.distribute.connect`) each computes the sums over its part of each
    sample, and all take the same steps. If arguments, models or data differ between workers, all
    raise an error.

    It is not a `keras.optimizers.Optimizer`: `update_step` gets one gradient of one batch, but a
    step here chooses samples, products and losses.

    Cost: an iteration takes |S_g| examples through a gradient, |S_c| examples through a product for
    each iteration of conjugate gradients, and the line search data through the model 10 to 30
    times. Memory: about 30 vectors of the size of the weights, and 4 m more with an L-BFGS
    preconditioner of m pairs.

    Args:
        preconditioner: Default None: `IdentityPreconditioner()`.
        gradient_sample: The sizes of S_g. Default None: `FixedSample(1.0)`, all examples.
        cg_sample: The sizes of S_c. Default None: `FixedSample(0.1)`, a tenth of them.
        damping: `LevenbergMarquardt`, or its lambda_0. Default 1.
        max_cg_iterations: At least 1. Default 250.
        line_search_split: The share of the examples for the line search, above 0 and below 1,
            unless `fit` gets `line_search_data`. Default 0.1.
        batch_size: Examples that go through the model at a time. It bounds the memory, and has no
            effect on the results except for rounding. Default 1024.
        seed: The seed of the samples. Default 0.
        make_worker: Creates the `Worker` of this process from a `Curvature`, `Examples` and the
            batch size. Default `LocalWorker`.

    Raises:
        ValueError: An argument is out of range.

    Deviations: see docs/extras/hessian_free.md.

    References:
        Sainath, Horesh, Kingsbury, Aravkin, Ramabhadran 2013, Accelerating Hessian-Free
        Optimization for Deep Neural Networks by Implicit Preconditioning and Sampling.
        Martens 2010, Deep learning via Hessian-free optimization.
    """

    def __init__(
        self,
        preconditioner: Preconditioner | None = None,
        gradient_sample: SampleSchedule | None = None,
        cg_sample: SampleSchedule | None = None,
        damping: LevenbergMarquardt | float = 1.0,
        max_cg_iterations: int = 250,
        line_search_split: float = 0.1,
        batch_size: int = 1024,
        seed: int = 0,
        make_worker: MakeWorker = LocalWorker,
    ) -> None:
        self.preconditioner = instance_argument(
            "preconditioner", preconditioner, Preconditioner, IdentityPreconditioner
        )
        self.gradient_sample = instance_argument(
            "gradient_sample", gradient_sample, SampleSchedule, FixedSample
        )
        self.cg_sample = instance_argument(
            "cg_sample", cg_sample, SampleSchedule, functools.partial(FixedSample, 0.1)
        )
        if self.cg_sample is self.gradient_sample:
            raise ValueError("cg_sample must not be the object of gradient_sample; got the same")
        if not isinstance(damping, LevenbergMarquardt):
            damping = LevenbergMarquardt(number_argument("damping", damping, above=0))
        self.damping = damping
        self.max_cg_iterations = integer_argument("max_cg_iterations", max_cg_iterations, 1)
        self.line_search_split = number_argument(
            "line_search_split", line_search_split, above=0, below=1
        )
        self.batch_size = integer_argument("batch_size", batch_size, at_least=1)
        self.seed = integer_argument("seed", seed, at_least=0)
        self._make_worker = make_worker
        self._state = TrainerState(self.damping.initial, np.random.default_rng(self.seed))

    def fit(
        self,
        model: keras.Model,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        validation_data: Any = None,
        epochs: int = 1,
        callbacks: Any = None,
        line_search_data: Any = None,
        initial_epoch: int = 0,
        verbose: int | str = "auto",
        sharded: bool = False,
    ) -> keras.callbacks.History:
        """Trains a compiled model; another call continues where this one ends.

        The logs of an epoch, besides `val_` values and the metrics of `compile`:

        | name | what |
        |---|---|
        | `loss` | of the sample of the gradient, before the step |
        | `line_search_loss` | L, after the step |
        | `step_size` | alpha; 0 where the step was rejected |
        | `rho` | how well q predicted L; NaN without a step to judge |
        | `damping` | lambda of this iteration |
        | `cg_iterations` | of conjugate gradients |
        | `gradient_sample`, `cg_sample` | the sizes of S_g and S_c |
        | `data_points` | examples that went through the model so far, for all purposes |
        | `gradient_points`, `cg_points`, `line_search_points` | the same in this epoch |
        | `gradient_seconds`, `cg_seconds`, `line_search_seconds` | time of this epoch |

        `ReduceLROnPlateau`, `LearningRateScheduler` and similar callbacks set the learning rate of
        the compiled optimizer, which takes no steps here. The longest step size is this rate
        divided by its value at the start of training: 1 at first.

        Args:
            model: A model compiled with one of the losses of `ConvexLoss`; called with
                `training=False`.
            x: Inputs of the model, or a finite `tf.data.Dataset` of batches (x, y) or (x, y,
                sample_weight), which is read into memory once.
            y: Targets; None with a dataset.
            sample_weight: As for `keras.Model.fit`.
            validation_data: As for `keras.Model.fit`; evaluated after each epoch. Training does not
                use it.
            epochs: The number of the last epoch.
            callbacks: Keras callbacks.
            line_search_data: (x, y), (x, y, sample_weight) or a dataset for the line search.
                Default None: a part of the examples that depends only on `seed`; gradients and
                products don't use them.
            initial_epoch: The number of epochs before the first.
            verbose: As for `keras.Model.fit`.
            sharded: With several workers, whether the examples, also for the line search, are only
                this worker's part. Default False: all workers have all of them.

        Returns:
            The `History` of this call.

        Raises:
            TypeError: Data is not a dense array.
            ValueError: The model or its loss does not fit; data is empty or does not fit together;
                the initial loss of the line search is not finite; or the state belongs to a model
                of another size. Weights (with several workers, the weights of worker 0) and state
                are unchanged.
            RuntimeError: With several workers: the model has a head, or workers no longer do the
                same.
        """
        workers = current()
        epochs, sharded = together(
            workers,
            SITE,
            lambda: (
                integer_argument("epochs", epochs, at_least=0),
                flag_argument("sharded", sharded),
            ),
        )
        fit = {
            "epochs": epochs,
            "initial_epoch": initial_epoch,
            "validation_data (0: none)": int(validation_data is not None),
            "sharded": int(sharded),
        }
        agree_on_arguments(workers, self, fit)
        share, seed, data = self.line_search_split, self.seed, (x, y, sample_weight)
        objective = make_objective(
            workers,
            model,
            lambda: examples_of(data, line_search_data, share, seed),
            self._make_worker,
            self.batch_size,
            sharded,
        )
        self._begin(workers, model, objective)
        callbacks = keras.callbacks.CallbackList(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=1,
            trainer=self,  # for callbacks.Checkpoint, which saves its state
        )
        evaluate = functools.partial(self._evaluate, model, validation_data, callbacks)

        def meet(phase: int) -> float:
            longest = _longest_step(model, self._state.learning_rate)
            workers.pick(_with_nobody, check_alike)(
                workers, phase, model, self._state.iteration, longest
            )
            return longest

        model.stop_training = False
        state = self._state
        callbacks.on_train_begin()
        if self._state is not state:  # Checkpoint has set one
            self._begin(workers, model, objective)
        logs: dict[str, float] = {}
        # BackupAndRestore stores the epoch of its backup in `_initial_epoch`.
        for epoch in range(getattr(model, "_initial_epoch", None) or initial_epoch, epochs):
            callbacks.on_epoch_begin(epoch)
            callbacks.on_train_batch_begin(0)
            logs = self._iterate(objective, meet(TRAIN))
            callbacks.on_train_batch_end(0, logs)
            logs |= same_validation(workers, evaluate)
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        meet(END_OF_FIT)
        callbacks.on_train_end(logs)
        return model.history

    def save_state(self, path: str | Path) -> None:
        """Writes the state for the next iteration, without the model, to a file.

        Training that continues from the file, with the model's weights and the same data, takes
        exactly the same steps. With several workers, all call it, and worker 0 writes.

        Args:
            path: The path of an `.npz` file; it appears whole or not at all.
        """
        save = functools.partial(self._state.save, path, self._parts())
        together(current(), SITE, save if current().rank == 0 else lambda: None)

    def load_state(self, path: str | Path) -> None:
        """Restores a file of `save_state`; all workers call it.

        Args:
            path: The path of the file.

        Raises:
            OSError: The file can't be read.
            ValueError: The file is damaged, is another kind of file, or was written with another
                kind of preconditioner or samples. The state is unchanged.
        """

        def load() -> TrainerState:
            return TrainerState.load(path, self._parts())

        self._state = together(current(), SITE, load)

    def get_state(self) -> dict[str, np.ndarray]:
        """Returns the state that `save_state` writes, as arrays."""
        return self._state.to_arrays(self._parts())

    def set_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Restores the result of `get_state`. Errors: as `load_state`."""
        self._state = TrainerState.from_arrays(arrays, self._parts())

    def _parts(self) -> dict[str, Any]:
        return {
            "preconditioner": self.preconditioner,
            "gradient_sample": self.gradient_sample,
            "cg_sample": self.cg_sample,
        }

    def _begin(self, workers: Workers, model: keras.Model, objective: Objective) -> None:
        workers.pick(_with_nobody, same_start)(workers, model, self.get_state)
        state, theta = self._state, objective.read()
        if state.parameters is not None and state.parameters.shape != theta.shape:
            raise ValueError(
                f"the model must have {state.parameters.shape[0]} weights, as the state has; "
                f"got {theta.shape[0]}"
            )
        loss = _finite(objective.loss_at(theta))
        if loss != state.loss or not state.is_at(theta):  # or the data have changed
            state.parameters, state.loss, state.gradient = theta, loss, None
        if state.learning_rate is None:
            state.learning_rate = _learning_rate(model)

    def _evaluate(self, model: keras.Model, data: Any, callbacks: Any) -> dict[str, float]:
        """Evaluates validation data by Keras; returns logs with the prefix `val_`."""
        if data is None:
            return {}
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        size = None if isinstance(x, tf.data.Dataset) else self.batch_size
        values = model.evaluate(
            x, y, size, verbose=0, sample_weight=weights, callbacks=callbacks, return_dict=True
        )
        return {f"val_{name}": value for name, value in values.items()}

    def _iterate(self, objective: Objective, longest: float) -> dict[str, float]:
        """Runs an iteration; returns its logs."""
        state, theta = self._state, objective.read()
        points = objective.points.copy()
        objective.start_clock()
        if not state.is_at(theta):  # a callback has changed the weights
            state.loss, state.gradient = _finite(objective.loss_at(theta)), None
        with objective.timed("gradient"):
            gradient = self._gradient(objective)
        step = Step()
        run: CGStatistics | None = None
        cg_size = self.cg_sample.size(state.iteration, objective.num_examples)
        if bool(tf.reduce_all(tf.math.is_finite(gradient.vector))):
            with objective.timed("cg"):
                objective.hold(self._draw(cg_size, objective.num_examples))
                solution, run = self._solve(objective, gradient.vector)
            with objective.timed("line_search"):
                try:
                    step = best_step(
                        lambda d: objective.loss_at(theta + d),
                        run,
                        gradient.vector,
                        state.loss,
                        longest,
                    )
                finally:
                    objective.assign(theta)
                if step.size:
                    objective.assign(theta + step.d)
        logs = {
            "loss": gradient.loss,
            "step_size": step.size,
            "rho": step.rho,
            "damping": state.damping,
            "cg_iterations": run.iterations if run else 0,
            "gradient_sample": gradient.size,
            "cg_sample": cg_size,
        }
        if step.size:
            state.start = _START_DECAY * solution
            state.gradient, state.refusals = None, 0
            state.damping = self.damping.after_step(state.damping, step.rho)
            state.loss = step.loss
        else:
            state.start = None
            state.gradient, state.refusals = gradient if run else None, state.refusals + 1
            state.damping = self.damping.after_refusal(state.damping)
        state.parameters = objective.read()
        state.iteration += 1
        spent = objective.points - points
        state.data_points += spent.total()
        return {
            **logs,
            "line_search_loss": state.loss,
            "data_points": state.data_points,
            **{f"{name}_points": spent[name] for name in ("gradient", "cg", "line_search")},
            **{f"{name}_seconds": value for name, value in objective.seconds.items()},
        }

    def _gradient(self, objective: Objective) -> Gradient:
        population = objective.num_examples
        schedules = (self.gradient_sample, self.cg_sample)
        size = self.gradient_sample.size(self._state.iteration, population)
        last = self._state.gradient
        if last is not None and (
            last.size == population or (last.size >= size and self._state.refusals < _MOST_REFUSALS)
        ):
            return last
        self._state.refusals = 0
        with_noise = any(schedule.needs_variance for schedule in schedules)
        gradient = objective.gradient(self._draw(size, population), with_noise)
        if gradient.noise is not None:
            for schedule in schedules:
                schedule.observe(gradient.noise, population)
        return gradient

    def _draw(self, size: int, population: int) -> np.ndarray:
        if size == population:
            return np.arange(population)
        return np.sort(self._state.generator.choice(population, size, replace=False))

    def _solve(self, objective: Objective, g: tf.Tensor) -> tuple[tf.Tensor, CGStatistics]:
        state = self._state
        squared_gradients = functools.partial(objective.squared_gradients, state.generator)
        self.preconditioner.prepare(state.damping, squared_gradients)
        damping = tf.constant(state.damping, g.dtype)
        solution, run = conjugate_gradient(
            lambda v: objective.product(v) + damping * v,
            -g,
            state.start,
            self.preconditioner,
            self.max_cg_iterations,
            num_pairs=self.preconditioner.num_pairs,
        )
        if run.pairs is not None:
            self.preconditioner.observe(run.pairs, state.damping)
        return solution, run


def _finite(loss: float) -> float:
    if not math.isfinite(loss):
        raise ValueError(
            f"the loss of the data of the line search must be finite to begin with; got {loss}"
        )
    return loss


def _learning_rate(model: keras.Model) -> float | None:
    """Returns the rate of the model's optimizer, which callbacks set; None if there is none."""
    rate = getattr(model.optimizer, "learning_rate", None)
    return None if rate is None else float(keras.ops.convert_to_numpy(rate))


def _with_nobody(*_: Any) -> None:
    """For one process: always True, without reading or setting weights."""


def _longest_step(model: keras.Model, first_rate: float | None) -> float:
    """Returns the size of the longest step: the present rate divided by the initial rate."""
    rate = _learning_rate(model)
    return 1.0 if rate is None or not first_rate else rate / first_rate
