# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: training that continues exactly where it was killed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.callbacks.checkpoint_folder import CheckpointFolder, Position, StoredRun
from tfx_largeout.callbacks.epoch_batches import EpochBatches, MakeEpoch
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.callbacks.run_state import RunState
from tfx_largeout.distribute.meeting import agree, together
from tfx_largeout.distribute.workers import current
from tfx_largeout.keras_internals import begin_at_epoch, pass_batches
from tfx_largeout.tensorflow_internals import traced_once

_SITE = "Checkpoint"
_NOT_AS_IT_IS = (
    "fit must get the dataset that Checkpoint.data returned, as it is, without steps_per_epoch and "
    "class_weight; got {}"
)


class Checkpoint(keras.callbacks.Callback):
    """Saves the whole state of a run; the same script, started again, continues from there.

    ```python
    checkpoint = tlo.callbacks.Checkpoint("runs/a", every=500)
    data = checkpoint.data(lambda epoch: train.dataset(512, shuffle=True, seed=epoch))
    model.fit(data, epochs=10, shuffle=False, callbacks=[checkpoint])
    ```

    A run that is killed at any moment and started again ends with the same weights, state and
    history, bit for bit, as an uninterrupted run, if steps are deterministic on this machine. A
    checkpoint has weights, optimizers, metrics, seeds of layers, the state of heads and their
    indexes, the position in the data, the history, the states of Python's, NumPy's and Keras's
    global random generators, and the states of the given `callbacks`.

    A file appears whole or not at all, and has a digest of each array. If the newest file is
    damaged, it is renamed with a warning, and the one before it is used.

    After a restart `fit` also counts the batches that are already trained, so that batches keep
    their numbers: it calls the batch hooks of callbacks for them, without training.

    A run that is finished or was stopped by a callback is not trained again: `fit` prints this,
    unless `verbose` is 0, and returns the history. With more `epochs`, it continues.

    Several workers (see `tlo.distribute`) share one folder, and all pass the same arguments; `data`
    takes the whole batches, and returns this worker's part of them. Each worker writes a file, and
    a checkpoint exists only when all files are on the disk. A run can continue with another number
    of workers, also from or with one process. The result is then equal except for rounding, for the
    tables of hash indexes, which are rebuilt from W, and for state per worker (seeds of layers,
    BatchNorm's averages, Keras metrics, random generators, callbacks), which worker r takes from
    worker r mod R' of the R' workers that wrote it.

    With `hessian_free.Trainer.fit`, which does not use `data`, the trainer's state is saved, too.

    Cost: a save writes all variables once and computes a digest; some 16 MiB of memory, and a copy
    of the largest variable that TensorFlow can't read in place. At the start, one more trace of the
    training step, and the first batch is read twice. A restart reads the file twice, with memory
    for two copies of the largest variable; in the middle of an epoch, earlier batches are read
    again.

    Args:
        folder: The folder for the checkpoints of this run only.
        every: `"epoch"` (default), or a number of steps. The end of the training is always saved.
        keep: The number of checkpoints to keep. Default 3.
        callbacks: Other callbacks of this `fit` whose state is saved, such as `EarlyStopping` and
            `ReduceLROnPlateau`: their attributes that are numbers, strings, arrays, or lists and
            dictionaries of these. They must come before this one in `fit`. Default none.

    Raises:
        ValueError: An argument is out of range. When training begins: the checkpoint belongs to
            another model or to other data; the batches are not determined by the epoch; `every` is
            a number and the data do not come from `data`; or there is more than one replica. With
            several workers also: data, arguments or files differ between them; callbacks with
            arrays, or gradients in the middle of `gradient_accumulation_steps`, come from another
            number of workers or other `data_replicas`. Nothing is changed then.
        RuntimeError: When training begins: there are checkpoints, but none is whole.

    Warns:
        UserWarning: A checkpoint could not be written (training continues), or is damaged; an
            object in the training step has state that can't be saved; or training continues with
            data that do not come from `data`.
    """

    def __init__(
        self,
        folder: str | Path,
        every: str | int = "epoch",
        keep: int = 3,
        callbacks: Sequence[keras.callbacks.Callback] = (),
    ) -> None:
        super().__init__()
        self._every = None
        if every != "epoch":
            if isinstance(every, str):
                raise ValueError(f"every must be 'epoch' or a number of steps; got {every!r}")
            self._every = integer_argument("every", every, at_least=1)
        self._folder = CheckpointFolder(Path(folder), integer_argument("keep", keep, at_least=1))
        self._callbacks = list(callbacks)
        self._batches: EpochBatches | None = None
        self._is_stopped = False

    def data(self, batches: MakeEpoch | tf.data.Dataset) -> tf.data.Dataset:
        """Returns the data for `fit`, with which a run can find its position again.

        Args:
            batches: A function from the number of an epoch (from 0) to its batches as a
                `tf.data.Dataset`; or one dataset for all epochs. The function must always return
                the same batches for the same number: shuffle in it, with a seed that depends on the
                number.

        Returns:
            A dataset for `fit`, to be used without `class_weight` and `steps_per_epoch`. With
            several workers it has this worker's part of each batch: `batches` must return whole
            batches.

        Raises:
            TypeError: `batches` is not a dataset, or does not return one.
            ValueError: An epoch has no, infinitely many or an unknown number of batches; or their
                order is not determined.
        """
        make_epoch = batches
        if isinstance(batches, tf.data.Dataset) or not callable(batches):
            make_epoch = lambda _: batches  # noqa: E731
        self._batches = EpochBatches(make_epoch)
        return self._batches

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        for callback in self._callbacks:
            if callback.model is not model:
                raise ValueError(
                    "callbacks of Checkpoint must stand before it in the callbacks of fit; got "
                    f"{type(callback).__name__} after it or not at all"
                )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._trainer = self.params.get("trainer")
        self._data_facts: list[Any] = [None, None]  # batches in an epoch, digest of the first
        self._passed: int = 0
        self._start = Position(0, 0)
        self._history: dict[str, Any] = {"epoch": [], "history": {}}
        self._source: StoredRun | None = None
        together(current(), _SITE, self._look_at_arguments)
        facts_of_all = {
            "every (0: epoch)": self._every or 0,
            "the list of callbacks": [type(callback).__name__ for callback in self._callbacks],
            "the data (whole batches, of which Checkpoint.data takes this worker's part)": (
                self._data_facts
            ),
        }
        agree(current(), _SITE, facts_of_all)
        self._make_variables()
        self._folder.clean()
        self._source = source = self._folder.newest(self._state.model.rows())
        if source is None:
            return
        together(current(), _SITE, lambda: self._check(source))
        self._restore(source)
        facts = source.facts
        self._start = Position(*facts["position"])
        self._history = facts["history"]
        # From here, like BackupAndRestore, `fit` takes the number of its first epoch.
        epochs, done = self.params["epochs"], self._start.epoch
        first = epochs if facts["stopped"] else done
        begin_at_epoch(self.model, first)
        if first >= epochs and self.params.get("verbose"):
            why = "a callback has stopped it" if facts["stopped"] else f"epochs={epochs}"
            print(
                f"nothing is left to train: the run in {self._folder.folder} is over, with "
                f"{done} epoch(s) done ({why})"
            )
        if self._batches is None and self._trainer is None:
            warnings.warn(
                "training continues exactly only if batches are the same in each epoch; got data "
                "that do not come from Checkpoint.data, which makes sure of that",
                UserWarning,
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._put_history_back()
        batch = self._start.batch if epoch == self._start.epoch else 0
        self._epoch, self._passed, self._is_due = epoch, batch, False
        self._is_stopped = False
        if self._batches is not None:
            self._batches.begin(epoch, batch)
            if batch and self._source is not None:
                pass_batches(
                    self.model,
                    batch // self.model.steps_per_execution,
                    self._batches.is_of_epoch,
                    self._source.facts["logs"],
                )

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._batches is not None and self._batches.is_due:
            raise ValueError(_NOT_AS_IT_IS.format("other data, or class_weight"))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        done = batch + 1
        if done <= self._passed:
            if done == self._passed and self._source is not None:
                # The same point of the loop as at the save: undoes changes that callbacks made at
                # the skipped batches.
                self._restore(self._source)
            return
        if self._every is None:
            return
        in_epoch = self._data_facts[0] or 1
        steps = self._epoch * in_epoch + done
        if steps % self._every >= self.model.steps_per_execution:
            return
        if done < in_epoch:
            self._save(Position(self._epoch, done), logs or {})
        else:
            self._is_due = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._history["epoch"].append(epoch)
        for name, value in (logs or {}).items():
            self._history["history"].setdefault(name, []).append(_number(value))
        is_last = self.model.stop_training or epoch + 1 == self.params["epochs"]
        self._is_stopped = self.model.stop_training
        if self._every is None or self._is_due or is_last:
            self._save(Position(epoch + 1, 0), {})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.model.stop_training and not self._is_stopped:
            # Set by a later callback, after the save.
            self._save(Position(self._epoch + 1, 0), {})
        self._put_history_back()

    # Checks and preparation before training

    def _look_at_arguments(self) -> None:
        """Raises an error if the run could not continue exactly."""
        replicas = self.model.distribute_strategy.num_replicas_in_sync
        if replicas > 1:
            raise ValueError(f"Checkpoint supports one replica; got {replicas}")
        if self._every is not None and self._batches is None and self._trainer is None:
            raise ValueError(
                "every must be 'epoch' for data that do not come from Checkpoint.data; got "
                f"{self._every}"
            )
        if self._batches is not None:
            steps = self.params.get("steps")
            if steps != self._batches.num_batches:
                raise ValueError(_NOT_AS_IT_IS.format(f"{steps} steps in an epoch"))
            self._data_facts = [self._batches.num_batches, self._batches.fingerprint()]

    def _make_variables(self) -> None:
        """Creates the variables that a step needs; warns of state that can't be saved."""
        model, graph = self.model, None
        if model.built and model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)  # some can't build in a function
        if self._batches is not None:
            try:
                # Tracing creates what Keras makes late: weights of a model without an input, slots
                # of its optimizer, variables of its metrics.
                graph = traced_once(model.train_step, self._batches.element_spec)
            except Exception:
                if not model.run_eagerly:  # such a step may not be traceable
                    raise
        if not model.built:
            raise ValueError(
                "the model must be built before fit if its step can't be traced, or for data that "
                f"do not come from Checkpoint.data; got {model.name!r}, which is not"
            )
        self._state = RunState(self.model, self._callbacks, self._trainer)
        for what in () if graph is None else self._state.model.not_saved(graph):
            _warn_of_inexact(what)

    def _check(self, source: StoredRun) -> None:
        self._state.check(source)
        facts, data = source.facts, self._data_facts
        if facts["data"] != data:
            raise ValueError(
                "the data must be the data of the checkpoint, with the same batches; got "
                f"{data} instead of {facts['data']} (batches in an epoch, digest of the first)"
            )
        batch, size = facts["position"][1], self.model.steps_per_execution
        if batch % size:
            raise ValueError(
                f"steps_per_execution must divide the {batch} batches that the checkpoint has of "
                f"its epoch; got {size}"
            )

    # Saving and restoring

    def _save(self, position: Position, logs: dict[str, Any]) -> None:
        stopped = bool(self.model.stop_training)
        model = self._state.model
        # Metrics restart with an epoch.
        late = ModelState(self.model, metrics=position.batch > 0).beside(model)
        if late:
            _warn_of_inexact(f"variables that came up in its first step: {', '.join(late)}")
        agree(
            current(),
            "a save of Checkpoint",
            {
                "epochs that are over": position.epoch,
                "batches of the next epoch": position.batch,
                "whether training has stopped": int(stopped),
                "the list of variables": model.names,
            },
        )
        snapshot = self._state.snapshot()
        snapshot.facts.update(position=position, stopped=stopped, data=self._data_facts)
        numbers = {name: _number(value) for name, value in logs.items()}
        snapshot.own_facts.update(history=self._history, logs=numbers)
        try:
            self._folder.write(position, snapshot)
        except OSError as error:
            warnings.warn(
                f"the checkpoint of epoch {position.epoch}, batch {position.batch}, could not be "
                f"written to {self._folder.folder} ({error}); training goes on, and earlier "
                "checkpoints are as they were",
                UserWarning,
                stacklevel=2,
            )

    def _restore(self, source: StoredRun) -> None:
        if together(current(), _SITE, lambda: self._state.restore(source)):
            self.model.make_train_function(force=True)

    def _put_history_back(self) -> None:
        """Adds the epochs before the restart to the history of `fit`."""
        begin_at_epoch(self.model, None)
        if self._source is None:
            return
        history = self.model.history
        if history.epoch != self._history["epoch"]:
            history.epoch = list(self._history["epoch"])
            history.history = {
                name: list(values) for name, values in self._history["history"].items()
            }


def _warn_of_inexact(what: str) -> None:
    warnings.warn(
        "a run that continues from a checkpoint will differ from an unbroken run: the training "
        f"step uses {what}, which can't be saved",
        UserWarning,
        stacklevel=2,
    )


def _number(value: Any) -> Any:
    """Returns a value of the logs as a Python number, for JSON."""
    return value if isinstance(value, (int, float)) else np.asarray(value).tolist()
