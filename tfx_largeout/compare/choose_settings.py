# SPDX-License-Identifier: Apache-2.0
"""choose_settings: learning rates, number of candidates and sampler, by short trials."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument, number_argument
from tfx_largeout.compare.comparison import write_csv
from tfx_largeout.compare.own_data import require_compiled
from tfx_largeout.compare.trial_batches import TrialBatches
from tfx_largeout.compare.trial_model import Settings, TrialModel, fresh_model
from tfx_largeout.distribute.workers import require_alone
from tfx_largeout.heads import Head
from tfx_largeout.heads.base import heads_of
from tfx_largeout.heads.candidate_head import CandidateHead
from tfx_largeout.keras_internals import random_state_kept
from tfx_largeout.samplers import LogUniform, Uniform, Unigram

_ASKED_BY = "choose_settings"
_SECONDS = 60.0
_SHARES = 40  # trials of the time: a short trial takes one share, a final trial four
_FINALS, _FINAL_LENGTH = 3, 4
_RATE_FACTOR, _SIZE_FACTOR = 3.0, 2
_STATIC = (LogUniform, Unigram, Uniform)


class Trial(NamedTuple):
    """A trial: its settings, its length, and its loss on held-out rows.

    Attributes:
        settings: The settings of the trial.
        stage: `"start"` (the model's settings), `"short"` or `"final"`.
        steps: Training steps.
        seconds: Seconds of training, without the first step, which traces.
        loss: The exact loss on held-out rows; NaN or infinite if training diverged.
        standard_error: The standard error of the loss, over rows. Errors of two trials are
            correlated: the rows are the same.
    """

    settings: Settings
    stage: str
    steps: int
    seconds: float
    loss: float
    standard_error: float

    def row(self) -> dict[str, Any]:
        """Returns the columns of a table."""
        return {
            "stage": self.stage,
            **self.settings.row(),
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "loss": self.loss,
            "loss_se": self.standard_error,
        }


class ChosenSettings:
    """The result of `choose_settings`; `str` returns the table of the trials.

    Attributes:
        settings: By name: `learning_rate` of the model's optimizer, `head_learning_rate`,
            `num_sampled`, `sampler`; a model may lack some.
        trials: The trials, in order.
    """

    def __init__(self, config: dict[str, Any], settings: Settings, trials: list[Trial]) -> None:
        self._config, self._chosen = config, settings
        self.trials = trials

    @property
    def settings(self) -> dict[str, Any]:
        return self._chosen.named()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per trial, as in `to_csv`."""
        return [trial.row() for trial in self.trials]

    def to_csv(self, path: str | Path) -> None:
        """Writes the table of the trials."""
        write_csv(Path(path), self.rows[0], self.rows)

    def model(self) -> keras.Model:
        """Returns a new compiled model like the given one, with the chosen settings.

        Its weights are newly initialized. The given model need not exist any more.
        """
        model = fresh_model(self._config)
        self._chosen.apply(model)
        return model

    def apply(self, model: keras.Model) -> None:
        """Applies the chosen settings to a model of this kind, without changing its weights."""
        self._chosen.apply(model)

    def __str__(self) -> str:
        rows = [{**row, "loss": f"{row['loss']:.4f}"} for row in self.rows]
        rows = [{**row, "loss_se": f"{row['loss_se']:.4f}"} for row in rows]
        cells = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in cells
        ]
        chosen = ", ".join(f"{name}={_text(value)}" for name, value in self._chosen.row().items())
        return "\n".join([*lines, f"chosen: {chosen}"])


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)


def choose_settings(
    model: keras.Model,
    data: Any,
    seconds: float | None = None,
    *,
    trials: int | None = None,
    steps: int = 100,
    validation: Any = None,
    rows: int = 1000,
    batch_size: int | None = None,
    seed: int = 0,
) -> ChosenSettings:
    """Chooses learning rates, the number of candidates S and the sampler by short trials on data.

    Each trial trains a copy of the model from its present weights, with new optimizers, on the same
    batches in the same order, for the same time. Its score is the exact loss on the same held-out
    rows. Starting with the model's settings, one setting after the other is changed, and a change
    is kept while the score falls: the learning rates of the head and of the model's optimizer
    (times 3, or 1/3), S (half, or twice), the sampler (log-uniform, uniform, by the frequency of
    the labels). The best three are then trained four times as long, and the best of them is chosen.
    Not tried: the rate of an optimizer with a schedule; the model's rate if its optimizer trains no
    weights; S and sampler of a head without a sampler; and other samplers if the sampler depends on
    W.

    ```python
    chosen = tlo.choose_settings(model, (x, y), trials=4, steps=2, rows=4)
    print(chosen)
    chosen.apply(model)
    ```

    Afterwards the model, its optimizers and all random generators of Python, NumPy and Keras are
    unchanged, bit for bit. Short trials favour settings that learn quickly at first: use the chosen
    rates as the start of a falling schedule.

    It ends after `seconds`: a trial starts only if enough time is left, and checks the clock after
    each step. So it exceeds the time by at most one step, the first tracing and a first trial of
    one step. Times differ between runs, and so may the choice. With `trials`, each trial takes
    `steps`, independent of time, and the choice depends only on the arguments, the weights and the
    seed, if steps are deterministic. Because steps with more candidates take longer, S is then
    doubled only if the loss falls by more than its standard error.

    Cost: memory for two more copies of the model and its optimizers, for the held-out rows, and for
    up to 200,000 rows of batches.

    Args:
        model: A compiled and built model with one head.
        data: As for `compare_heads`, may be infinite: `(x, y)`, `(x, y, weights)`, a
            `tf.data.Dataset`, a `PyDataset` or another iterable. Held-out rows are chosen at random
            from arrays, or are the first batches.
        seconds: The total time. Default 60.
        trials: Instead of `seconds`: the number of trials, at least 2.
        steps: Steps of a short trial, with `trials`. Default 100.
        validation: Held-out rows, in a form of `data`. Default None: taken from `data`.
        rows: The number of held-out rows, at most a fifth of arrays. Default 1000.
        batch_size: The batch size for arrays; otherwise it must be None. Default 32, as in `fit`.
        seed: The seed of the order of rows, of held-out rows, and of trials. Default 0.

    Returns:
        The choice, `settings`; the trials, `rows` and `trials`, also by `str` and `to_csv`; and two
        ways to apply it: `apply(model)`, and `model()`, a new compiled model.

    Raises:
        TypeError: Keras can't rebuild `model` from its configuration, or it has no head, or the
            labels are not class ids.
        ValueError: An argument is out of range, `seconds` and `trials` are both given; the model is
            not compiled, or not built, or has several heads; there are no data, or too few to hold
            out rows.
        RuntimeError: There are several workers.
    """
    start = time.perf_counter()
    if seconds is not None and trials is not None:
        raise ValueError(f"seconds must be None beside trials; got {seconds!r} and {trials!r}")
    if trials is None:
        seconds = number_argument("seconds", _SECONDS if seconds is None else seconds, above=0)
    else:
        trials = integer_argument("trials", trials, at_least=2)
    steps = integer_argument("steps", steps, at_least=1)
    rows = integer_argument("rows", rows, at_least=2)
    seed = integer_argument("seed", seed, at_least=0)
    require_alone(_ASKED_BY)
    head = _head_of(model)
    batches = TrialBatches(_ASKED_BY, data, validation, rows, batch_size, seed)
    with random_state_kept(seed):
        trial_model = TrialModel(model, batches)
        clock = _Clock(start, seconds, trials, steps)
        search = _Search(trial_model, clock, _samplers(head, batches))
        settings = search.run()
    chosen = ChosenSettings(trial_model.config, settings, search.trials)
    logging.getLogger(__name__).info("%s: %s", _ASKED_BY, settings.row())
    return chosen


def _head_of(model: Any) -> Head:
    require_compiled(model)
    if not model.built:
        raise ValueError(f"model must be built; got {model.name!r}, which is not")
    heads = heads_of(model)
    if not heads:
        raise TypeError(
            f"model must have a head of this package, as tlo.replace_output gives it one; got "
            f"{model.name!r} without"
        )
    if len(heads) > 1:
        raise ValueError(f"model must have one head; got {[head.name for head in heads]}")
    return heads[0]


def _samplers(head: Head, batches: TrialBatches) -> list[Any]:
    """Returns the samplers to try besides the head's, with its options."""
    own = head.sampler if isinstance(head, CandidateHead) else None
    if not isinstance(own, _STATIC):
        return []
    names = ("num_sampled", "unique", "per_example", "first_id")
    options = {name: value for name, value in own.get_config().items() if name in names}
    others: list[Any] = [kind(**options) for kind in (LogUniform, Uniform) if type(own) is not kind]
    counts = None if type(own) is Unigram else batches.label_counts(head.num_classes)
    return others if counts is None else [*others, Unigram(counts, **options)]


class _Clock:
    """Measures the time of trials, and decides whether there is time for another."""

    def __init__(self, start: float, seconds: float | None, trials: int | None, steps: int) -> None:
        self._end = None if seconds is None else start + seconds
        self._short = 0.0 if seconds is None else seconds / _SHARES
        self._trials, self._steps = trials or 0, steps
        self._evaluation, self._beside = 0.0, {True: 0.0, False: 0.0}
        self.finals = _FINALS if trials is None else min(_FINALS, trials // 4)

    @property
    def counts_steps(self) -> bool:
        """Whether trials have the same number of steps."""
        return self._end is None

    def has_time(self, done: int, length: int, traces: bool) -> bool:
        """Whether a trial of a length (in short trials) may begin after `done` trials."""
        if not done:
            return True
        if self._end is None:
            return done + (self.finals if length == 1 else 0) < self._trials
        needed = length * self._short + self._evaluation + self._beside[traces]
        if length == 1:  # the last trial takes its time as well
            needed += self.finals * (_FINAL_LENGTH * self._short + self._evaluation)
        return time.perf_counter() + needed <= self._end

    def is_over(self, steps: int, seconds: float, length: int) -> bool:
        """Whether a trial of a length is over after these steps and seconds of training."""
        if self._end is None:
            return steps >= length * self._steps
        late = time.perf_counter() + self._evaluation >= self._end
        return seconds >= length * self._short or late

    def note(self, traces: bool, whole: float, training: float, evaluation: float) -> None:
        """Records the time of the last trial besides training."""
        self._evaluation = evaluation
        self._beside[traces] = whole - training - evaluation


class _Search:
    """Changes one setting after the other while the score falls; then trains longer."""

    def __init__(self, model: TrialModel, clock: _Clock, samplers: list[Any]) -> None:
        self._model, self._clock, self._samplers = model, clock, samplers
        self.trials: list[Trial] = []
        self._known: dict[tuple[str, ...], Trial] = {}

    def run(self) -> Settings:
        """Returns the best settings."""
        self._model.score()  # traces, so that the time of scores is known
        best, before = self._try(self._model.settings, 1, "start"), None
        while best is not before:
            before = best
            for ways in self._ways():
                best = self._improved(best, ways)
        short = sorted(self._known.values(), key=_score)
        finals = [
            self._try(trial.settings, _FINAL_LENGTH, "final")
            for trial in short[: self._clock.finals]
        ]
        done = [trial for trial in finals if trial is not None]
        return min(done or short, key=_score).settings

    def _ways(self) -> Iterator[list[_Change]]:
        """Yields for each setting the directions in which it may be changed."""
        first = self._model.settings
        for name in ("head_learning_rate", "learning_rate"):
            if getattr(first, name) is not None:
                yield [_scaled(name, _RATE_FACTOR), _scaled(name, 1 / _RATE_FACTOR)]
        if first.num_sampled is not None:
            most = self._model.head.num_classes
            yield [_resized(1 / _SIZE_FACTOR, most), _resized(_SIZE_FACTOR, most)]
        for sampler in self._samplers:
            yield [_with_sampler(sampler)]

    def _improved(self, best: Any, ways: list[_Change]) -> Any:
        """Returns the best trial of a change, or of several changes in the same direction."""
        for change in ways:
            start = best
            while (settings := change(best.settings)) is not None:
                trial = self._known.get(settings.key()) or self._try(settings, 1, "short")
                if trial is None or not self._is_better(trial, best):
                    break
                best = trial
            if best is not start:
                break
        return best

    def _is_better(self, trial: Trial, best: Trial) -> bool:
        sizes = [each.settings.num_sampled or 0 for each in (trial, best)]
        dearer = self._clock.counts_steps and sizes[0] > sizes[1]
        return _score(trial) < _score(best) - (trial.standard_error if dearer else 0)

    def _try(self, settings: Settings, length: int, stage: str) -> Trial | None:
        traces = self._model.traces(settings)
        if not self._clock.has_time(len(self.trials), length, traces):
            return None
        begin = time.perf_counter()
        self._model.begin(settings)
        steps, training, diverged = self._train(length)
        trained = time.perf_counter()
        score = (math.nan, math.nan) if diverged else self._model.score()
        end = time.perf_counter()
        self._clock.note(traces, end - begin, training, end - trained)
        trial = Trial(settings, stage, steps, training, *score)
        self.trials.append(trial)
        self._known.setdefault(settings.key(), trial)
        return trial

    def _train(self, length: int) -> tuple[int, float, bool]:
        """Returns the steps taken, their seconds without the first one, and whether it diverged."""
        steps, seconds = 0, 0.0
        try:
            for batch in self._model.batches.training():
                begin = time.perf_counter()  # only the first trial waits long for data
                loss = self._model.step(batch)
                seconds += time.perf_counter() - begin if steps else 0.0
                steps += 1
                if not math.isfinite(loss):
                    return steps, seconds, True
                if self._clock.is_over(steps, seconds, length):
                    break
        except tf.errors.InvalidArgumentError:
            if not self.trials:  # it does not belong to a trial
                raise
            return steps, seconds, True  # a step with numbers that are not finite raises
        return steps, seconds, False


def _score(trial: Trial) -> float:
    return trial.loss if math.isfinite(trial.loss) else math.inf


_Change = Callable[[Settings], Settings | None]


def _scaled(name: str, factor: float) -> _Change:
    return lambda settings: settings._replace(**{name: getattr(settings, name) * factor})


def _resized(factor: float, most: int) -> _Change:
    def change(settings: Settings) -> Settings | None:
        size = min(most, max(1, round((settings.num_sampled or 0) * factor)))
        return None if size == settings.num_sampled else settings._replace(num_sampled=size)

    return change


def _with_sampler(sampler: Any) -> _Change:
    def change(settings: Settings) -> Settings | None:
        same = type(settings.sampler) is type(sampler)
        return None if same else settings._replace(sampler=sampler)

    return change
