# SPDX-License-Identifier: Apache-2.0
"""RunState: the state of the model, of callbacks, of random generators and of a trainer."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfx_largeout.callbacks.callback_state import callback_state, restore_callback
from tfx_largeout.callbacks.checkpoint_file import NamedArray
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.callbacks.stored_run import StoredRun
from tfx_largeout.distribute.workers import current
from tfx_largeout.keras_internals import global_seed, set_global_seed

_GLOBAL_SEED = "random/keras"
_OF_CALLBACKS = "callbacks/"
_OF_TRAINER = "trainer/"


class RunState:
    """What a step reads or changes, the data aside.

    Args:
        model: Built, with its optimizer and metrics.
        callbacks: Those whose state counts.
        trainer: What trains the model if `fit` does not; or None.
    """

    def __init__(
        self, model: keras.Model, callbacks: Sequence[keras.callbacks.Callback], trainer: Any
    ) -> None:
        self.model = ModelState(model)
        self._callbacks = callbacks
        self._trainer = trainer
        self._trainer_name = type(model if trainer is None else trainer).__name__

    def facts(self) -> dict[str, Any]:
        """Returns what JSON can hold of the model; over workers the same on all of them."""
        return {"model": self.model.facts(), "trainer": self._trainer_name}

    def own(self) -> tuple[dict[str, Any], list[NamedArray]]:
        """Returns what is this worker's own: what JSON can hold, and arrays."""
        states, arrays = [], []
        for number, callback in enumerate(self._callbacks):
            state, of_callback = callback_state(callback)
            states.append([type(callback).__name__, state])
            arrays += _named(f"{_OF_CALLBACKS}{number}/", of_callback)
        if self._trainer is not None:
            arrays += _named(_OF_TRAINER, self._trainer.get_state())
        seed = global_seed()
        if seed is not None:
            arrays += _named("", {_GLOBAL_SEED: seed})
        generators = {"python": random.getstate(), "numpy": _numpy_state()}
        return {"random": generators, "callbacks": states}, arrays

    def check(self, run: StoredRun) -> None:
        """Checks that a checkpoint can be restored.

        Raises:
            ValueError: It is that of another model, trainer or of other callbacks.
        """
        facts = run.facts
        self.model.check(facts["model"])
        if facts["trainer"] != self._trainer_name:
            raise ValueError(
                f"the checkpoint must come from {self._trainer_name}.fit; got one from "
                f"{facts['trainer']}.fit"
            )
        names = [type(callback).__name__ for callback in self._callbacks]
        saved = [name for name, _ in facts["callbacks"]]
        if names != saved:
            raise ValueError(f"callbacks must be those of the checkpoint, {saved}; got {names}")
        if run.num_workers != current().size:
            self._refuse_arrays_of_callbacks(run)

    def restore(self, run: StoredRun) -> bool:
        """Takes on a state that `check` has passed.

        Returns:
            Whether a seed has changed that is part of a traced graph.
        """
        facts = run.facts
        if self._trainer is not None:  # first, as it may refuse
            self._trainer.set_state(_arrays_under(_OF_TRAINER, run))
        anew = run.num_workers != current().size
        is_new = self.model.restore(facts["model"], run.array, anew)
        for number, (callback, (_, state)) in enumerate(
            zip(self._callbacks, facts["callbacks"], strict=True)
        ):
            restore_callback(callback, state, _arrays_under(f"{_OF_CALLBACKS}{number}/", run))
        if _GLOBAL_SEED in run.names:
            set_global_seed(run.array(_GLOBAL_SEED))
        version, words, following = facts["random"]["python"]
        random.setstate((version, tuple(words), following))
        np.random.set_state(facts["random"]["numpy"])
        return is_new

    def _refuse_arrays_of_callbacks(self, run: StoredRun) -> None:
        arrays = _arrays_under(_OF_CALLBACKS, run)
        names = [name for name, array in arrays.items() if array.ndim]
        if names:
            raise ValueError(
                "callbacks must keep no arrays where a run goes on with another number of workers, "
                "as they may have rows of classes that other workers need then; got "
                f"{', '.join(sorted({name.split('/')[1] for name in names}))} of "
                f"{[type(callback).__name__ for callback in self._callbacks]}, from "
                f"{run.num_workers} workers for {current().size}"
            )


def _named(prefix: str, arrays: dict[str, np.ndarray]) -> list[NamedArray]:
    return [(prefix + name, functools.partial(np.asarray, array)) for name, array in arrays.items()]


def _arrays_under(prefix: str, run: StoredRun) -> dict[str, np.ndarray]:
    names = [name for name in run.names if name.startswith(prefix)]
    return {name.removeprefix(prefix): run.array(name) for name in names}


def _numpy_state() -> list[Any]:
    state: Any = np.random.get_state()
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in state]
