# SPDX-License-Identifier: Apache-2.0
"""compare_models: a user's models side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import keras

from tfx_largeout.arguments import flag_argument, integer_argument, number_argument
from tfx_largeout.compare.comparison import (
    Comparison,
    OutputFolder,
    describe_machine,
    describe_versions,
)
from tfx_largeout.compare.exact_evaluation import ExactEvaluation
from tfx_largeout.compare.job import run_name, say, take_turns
from tfx_largeout.compare.own_data import OwnData, own_data
from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.root_message import root_message
from tfx_largeout.compare.settings import TrainingSettings
from tfx_largeout.compare.timed_fit import EventFile, Supervisor
from tfx_largeout.compare.worker import OnChange
from tfx_largeout.heads.base import heads_of
from tfx_largeout.heads.keras_losses_and_metrics import (
    ignored_by_loss_of,
    no_class_below_0,
    only_loss,
)
from tfx_largeout.ops import library
from tfx_largeout.tensorflow_internals import custom_gradients_forgotten

_SECONDS = 60.0
# A compiled model of the user, who may train it further, or a function of a seed.
_Model: TypeAlias = keras.Model | Callable[[int], keras.Model]


def compare_models(
    models: Mapping[str, keras.Model | Callable[[], keras.Model]],
    train: Any,
    validation: Any,
    *,
    seconds: float | None = None,
    epochs: float | None = None,
    evaluations: int = 6,
    batch_size: int | None = None,
    seeds: int = 1,
    output: str | Path | None = None,
    overwrite: bool = False,
) -> Comparison:
    """Trains models one after the other for the same time, and compares them.

    Each is trained with plain `fit` and evaluated with P@1, P@3, P@5 and the exact loss,
    independent of its compiled loss and metrics: before the first step, at regular intervals, and
    at the end. The table is printed, and the files of `tfx-largeout compare` are written to a
    folder: CSV, JSON, a page with table and figures, TensorBoard runs. Models keep their trained
    weights.

    ```python
    comparison = tlo.compare_models({"mine": model}, (x, y), (x, y), epochs=1)
    print(comparison.rows[0].precision_at_1)
    ```

    The time includes steps and waiting for data, but not compilation and evaluation. If a model
    fails, this is reported, and the next one starts. Ctrl-C ends the comparison and keeps its
    results so far.

    Args:
        models: Compiled models with one output, logits or probabilities `[..., C]`, by name; or
            functions without arguments that build one, so that only one is in memory.
        train: Data for `fit`: `(x, y)`, `(x, y, weights)`, a `tf.data.Dataset`, a `PyDataset` or
            another iterable of known length. It must be finite.
        validation: The same, to evaluate on. Labels are class ids, or one-hot rows.
        seconds: Seconds of training for each model. Default 60.
        epochs: Instead of `seconds`: epochs of training for each model, may be a fraction.
        evaluations: The number of evaluations of each model in training, including the end.
        batch_size: The batch size for arrays; otherwise it must be None. Default 32, as in `fit`.
        seeds: The number of seeds, 0, 1, ...; means are reported. Above 1 all models must be
            functions. Keras's seed is set before a model is built and before it is trained: the
            order of the examples is the same for all.
        output: Folder for the results. Default: a new one, `runs/compare-<date>-<time>`.
        overwrite: Whether to replace the results of an earlier comparison in `output`.

    Returns:
        `rows` (the figures of the table), `curves` (all evaluations by name and seed), `folder`;
        `str` returns the table, and a notebook shows it.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A value is invalid; a model is not compiled; two models share weights, or have
            losses that ignore different classes.
    """
    if not isinstance(models, Mapping) or not models:
        raise TypeError(f"models must be a dict with at least one model; got {models!r}")
    seeds = integer_argument("seeds", seeds, at_least=1)
    ignored: dict[str, int | None] = {}  # by the name of each model so far
    for name, model in models.items():
        _check(name, model, seeds, ignored)
    _check_weights_are_apart(models)
    of_seed: dict[str, _Model] = {
        name: model
        if isinstance(model, keras.Model)
        else functools.partial(_built, name, model, ignored)
        for name, model in models.items()
    }
    data = own_data(train, validation, batch_size)
    settings = length_settings(seconds, epochs, evaluations, seeds)
    return compare_built(of_seed, *data, settings, output, overwrite)


def length_settings(
    seconds: float | None, epochs: float | None, evaluations: int, seeds: int
) -> TrainingSettings:
    """Returns the settings of the length and the number of trainings.

    Raises:
        ValueError: A value is invalid, or `seconds` and `epochs` are both given.
    """
    if seconds is not None and epochs is not None:
        raise ValueError(f"seconds must be None beside epochs; got {seconds!r} and {epochs!r}")
    if epochs is not None:
        epochs = number_argument("epochs", epochs, above=0)
    else:
        seconds = number_argument("seconds", _SECONDS if seconds is None else seconds, above=0)
    evaluations = integer_argument("evaluations", evaluations, at_least=1)
    seeds = integer_argument("seeds", seeds, at_least=1)
    return TrainingSettings(seconds, epochs, evaluations, seeds=seeds)


def compare_built(
    models: Mapping[str, _Model],
    train: OwnData,
    validation: OwnData,
    settings: TrainingSettings,
    output: str | Path | None,
    overwrite: bool,
) -> Comparison:
    """Compares compiled models, or functions of a seed that return one: see `compare_models`."""
    overwrite = flag_argument("overwrite", overwrite)
    with contextlib.ExitStack() as stack:
        try:
            files = OutputFolder(None if output is None else str(output), overwrite)
            files.make()
            stack.enter_context(files.claimed())
        except ValueError as error:
            message = str(error).replace("--overwrite", "overwrite=True")  # an argument here
            raise ValueError(f"output {message}") from None
        configuration = {
            "training": {
                "seconds": settings.budget,
                "epochs": settings.epochs,
                "evaluations": settings.evaluations,
                "seeds": settings.seeds,
                "batch_size": train.batch_size,
                "batches": train.batches,
                "validation_batches": validation.batches,
            },
            "machine": describe_machine(),
            "versions": describe_versions(),
        }
        count = f"{len(models)} model" + "s" * (len(models) > 1)
        comparison = Comparison(count, files, configuration)
        epochs, seconds = settings.epochs, settings.budget
        length = f"{epochs:g} epochs" if seconds is None else f"{seconds:g} s"
        say(f"{count}, {length} of training each; evaluation is not counted.")
        turns = []
        for seed in range(settings.seeds):
            for name, model in models.items():
                turn = run_name(name, seed, settings.seeds)
                run = _Run(name, turn, model, seed, train, validation, settings, files)
                turns.append((turn, run.train))
        take_turns(turns, comparison, settings)
    return comparison


@dataclasses.dataclass(frozen=True)
class _Run:
    """The training of one model with one seed."""

    name: str
    turn: str
    model: _Model
    seed: int
    train_data: OwnData
    validation: OwnData
    settings: TrainingSettings
    files: OutputFolder

    def train(self, on_change: OnChange) -> HeadResult:
        """Builds and trains the model; errors are stored in the result."""
        start = time.monotonic()
        builds = not isinstance(self.model, keras.Model)  # so that nothing else refers to the model
        result = HeadResult(self.name, {}, status="running", seed=self.seed)
        try:
            with custom_gradients_forgotten() if builds else contextlib.nullcontext():
                self._fit(result, on_change)
        except KeyboardInterrupt:
            result.status = "interrupted"
        except Exception as error:
            result.status = "failed"
            result.error = f"{type(error).__name__}: {root_message(str(error))}"
            self.files.log(self.turn).write_text(traceback.format_exc())
        if builds:
            gc.collect()
        result.wall_seconds = time.monotonic() - start
        return result

    def _fit(self, result: HeadResult, on_change: OnChange) -> None:
        keras.utils.set_random_seed(self.seed)
        model = self.model if isinstance(self.model, keras.Model) else self.model(self.seed)
        result.options = _options(model)
        evaluation = ExactEvaluation(model)
        data = self.train_data

        def evaluate() -> dict[str, float]:
            values = evaluation.measure(self.validation.arguments)
            result.data = {"classes": evaluation.num_classes}
            result.parameters = model.count_params()
            return values

        def send(**told: Any) -> None:
            on_change(result, result.take(told))

        send(
            stage="training",
            steps_per_epoch=data.batches,
            batch_size=data.batch_size,
            implementation=library.library_status(),
        )
        if library.load() is None:
            send(note=library.library_status())
        hyper_parameters = {"model": self.name, "seed": self.seed, **result.options}
        events = EventFile(str(self.files.tensorboard / self.turn), hyper_parameters)
        keras.utils.set_random_seed(self.seed)  # same order for all models
        supervisor = Supervisor(self.settings, data.batches, evaluate, send, events)
        clock = supervisor.fit(model, data.fit_arguments)
        send(status="done", steps=clock.steps, seconds=clock.seconds)


def _options(model: keras.Model) -> dict[str, Any]:
    """Returns facts about a model for readers of the results."""
    loss = only_loss(model)
    name = getattr(loss, "__name__", None) or getattr(loss, "name", None) or str(loss)
    options = {"loss": name, "optimizer": type(model.optimizer).__name__}
    rate = getattr(model.optimizer, "_learning_rate", None)
    if rate is not None:
        schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        value = float(model.optimizer.learning_rate)
        options["learning_rate"] = type(rate).__name__ if schedule else f"{value:.6g}"
    return {**options, **_head_options(model)}


def _head_options(model: keras.Model) -> dict[str, Any]:
    """Returns the settings of the head, if the model has one head."""
    heads = heads_of(model)
    if len(heads) != 1:
        return {}
    head, options = heads[0], {"head": type(heads[0]).__name__}
    optimizer, sampler = getattr(head, "optimizer", None), getattr(head, "sampler", None)
    if optimizer is not None:
        options["head_optimizer"] = type(optimizer).__name__
        options["head_learning_rate"] = f"{float(optimizer.learning_rate):.6g}"
    if sampler is not None:
        options["sampler"] = sampler if isinstance(sampler, str) else type(sampler).__name__
        number = getattr(sampler, "num_sampled", getattr(head, "num_sampled", None))
        options |= {} if number is None else {"num_sampled": number}
    return options


def _built(
    name: str, build: Callable[[], keras.Model], ignored: dict[str, int | None], seed: int
) -> keras.Model:
    model = build()
    _check_compiled(name, model, ignored)
    return model


def check_name(of: str, name: Any) -> None:
    """Raises ValueError for a name that can't be a folder name, for TensorBoard."""
    if not isinstance(name, str) or not name.strip(".") or "/" in name:
        raise ValueError(f"names of {of} must be text without a slash; got {name!r}")


def _check(name: str, model: Any, seeds: int, ignored: dict[str, int | None]) -> None:
    check_name("models", name)
    if not isinstance(model, keras.Model):
        if not callable(model):
            raise TypeError(
                "models must be compiled keras models, or functions that build one; got "
                f"{model!r} as {name!r}"
            )
        return
    _check_compiled(name, model, ignored)
    if seeds > 1:
        raise ValueError(
            "models must be functions that build one where there are several seeds; got the "
            f"model {name!r} with seeds={seeds}"
        )


def _check_compiled(name: str, model: Any, ignored: dict[str, int | None]) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(f"{name!r} must build a keras.Model; got {model!r}")
    if not model.compiled:
        raise ValueError(f"models must be compiled; got {name!r}, which is not")
    ignored[name] = no_class_below_0(ignored_by_loss_of(model))
    first = next(iter(ignored))
    if ignored[name] != ignored[first]:
        raise ValueError(
            "models must have losses that ignore the same class, as evaluation leaves it out; got "
            f"ignore_class={ignored[name]} in {name!r} and {ignored[first]} in {first!r}"
        )


def _check_weights_are_apart(models: Mapping[str, Any]) -> None:
    owners: dict[int, str] = {}
    for name, model in models.items():
        for weight in model.weights if isinstance(model, keras.Model) else ():
            owner = owners.setdefault(id(weight), name)
            if owner != name:
                raise ValueError(
                    "models must not share weights, or one begins where another ended; "
                    f"got {weight.path!r} in {owner!r} and in {name!r}"
                )
