# SPDX-License-Identifier: Apache-2.0
"""SampledValidation: exact validation on the same few rows, every few steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, flag_argument, integer_argument, number_argument
from tfx_largeout.callbacks.row_means import STANDARD_ERROR, RowMeans
from tfx_largeout.callbacks.row_sample import RowSample
from tfx_largeout.callbacks.step_measurements import StepMeasurements, wire_field
from tfx_largeout.losses.base import HeadLoss

_PREFIX = "val_"
_NO_MEANS = ("sum", "none", None)  # reductions of losses
_LAYOUT = "custom_scalars"  # TensorBoard's plugin for charts with a band


class SampledValidation(StepMeasurements):
    """Validates on a fixed random sample of rows; the time does not grow with the data.

    The model's compiled loss and metrics are evaluated, exactly, at the end of each epoch and, with
    `every`, within epochs. They go into the logs under Keras's names, with the standard error of
    every value that is a mean, or a ratio of means, over rows:

        val_loss, val_loss_se, val_precision_at_1, val_precision_at_1_se, ...

    so that `EarlyStopping(monitor="val_loss")`, `ModelCheckpoint`, `ReduceLROnPlateau`,
    `TensorBoard` and the history work with them. They must come after this callback in `fit`.

    ```python
    validation = tlo.callbacks.SampledValidation(x, y, rows=16, every=1, patience=3)
    model.fit(x, y, epochs=2, callbacks=[validation], verbose=0)
    validation.history[-1]["val_loss"], validation.history[-1]["val_loss_se"]
    ```

    A value equals `evaluate` on the sample as one batch; memory is as for a batch of `batch_size`.
    For N rows with the values v_n, the standard error of their mean is

        se = sqrt(sum_n (v_n - mean)^2 / (N - 1) / N),

    and for ratios of sums, such as weighted means, it comes from the delta method. It estimates the
    distance from the value on infinitely many rows of the same kind: without a finite-population
    factor, so it is not 0 even if the sample has all rows. A sequence counts as one row. Between
    two measurements on the same rows, differences have smaller errors. Metrics that are not a ratio
    of sums over rows, such as AUC, have no standard error.

    Rows are chosen at the first start of training, without replacement, among the rows with a
    label: from arrays, or by one pass over a data set, with the same result. They are kept in
    memory.

    `patience` can stop training in the middle of an epoch. With `restore_best` the weights of the
    best measurement are restored at the end of training, as in `EarlyStopping`.
    `Checkpoint(callbacks=[validation])` saves the best value, the count for `patience`, these
    weights and the history.

    With a `log_dir`, TensorBoard gets the values by step, with bands of one standard error below
    and above, under "Custom scalars". The callback does not change training, bit for bit, except
    that it may stop it; training metrics continue in the middle of an epoch.

    Several workers (see `tlo.distribute`) all pass the same, whole data, not their parts.

    Cost: O(rows C D) per validation, with the memory of a batch; also the rows themselves, and with
    `restore_best` a copy of all weights.

    Args:
        x: Inputs, as for `evaluate`: arrays or tensors, dense, sparse or ragged, nested or not; or
            batches `(x, y)` or `(x, y, weights)` as a `tf.data.Dataset`, a `PyDataset` or another
            finite iterable. Dense batches with different lengths, such as padded sequences, are
            padded: labels with -1, everything else with 0.
        y: Labels of arrays.
        sample_weight: Their weights. Default None: 1.
        rows: The number of rows; all if there are fewer. Default 2000.
        every: Steps between validations. Default None: only at the end of each epoch.
        batch_size: Rows of a batch. Default 256.
        seed: The seed of the choice. Default 0.
        monitor: The value for `patience` and `restore_best`. Default `"val_loss"`.
        mode: `"min"`, `"max"`, or `"auto"` (default): by the kind of the monitor.
        min_delta: The smallest change that counts as better. Default 0.
        patience: The number of validations in turn without a better value after which training
            stops. Default None: never.
        restore_best: Whether to restore the best weights. Default False.
        log_dir: Folder for TensorBoard's event files. Default None: none are written.

    Raises:
        ValueError: An argument is out of range. When training begins: no row has a label, the data
            have no end, or the reduction of a loss is no mean. In training: there is no such
            `monitor`, or its direction is unknown for `"auto"`; `fit` has `validation_data`, whose
            values would have the same names.
        TypeError: When training begins: the data have another type, or the model has no `HeadLoss`.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        rows: int = 2000,
        every: int | None = None,
        batch_size: int = 256,
        seed: int = 0,
        monitor: str = "val_loss",
        mode: str = "auto",
        min_delta: float = 0.0,
        patience: int | None = None,
        restore_best: bool = False,
        log_dir: str | Path | None = None,
    ) -> None:
        super().__init__(log_dir)
        self.rows = integer_argument("rows", rows, at_least=2)
        self.every = None if every is None else integer_argument("every", every, at_least=1)
        self.batch_size = integer_argument("batch_size", batch_size, at_least=1)
        self.seed = integer_argument("seed", seed, at_least=0)
        self.monitor = monitor
        self.mode = choice_argument("mode", mode, ("auto", "min", "max"))
        self.min_delta = number_argument("min_delta", min_delta, at_least=0)
        self.patience = None if patience is None else integer_argument("patience", patience, 1)
        self.restore_best = flag_argument("restore_best", restore_best)
        if y is None and sample_weight is not None:
            raise ValueError(
                "sample_weight must be None where x comes in batches, which may have weights"
            )
        data = x if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
        self._data = lambda: data  # Checkpoint saves only arrays
        self._sample: RowSample | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        asked_by = type(self).__name__
        losses = keras.tree.flatten(getattr(self.model, "loss", None))
        heads = [loss for loss in losses if isinstance(loss, HeadLoss)]
        if not heads:
            raise TypeError(f"{asked_by} needs a model with a HeadLoss; got {self.model.loss!r}")
        for loss in losses:
            if getattr(loss, "reduction", "mean") in _NO_MEANS:
                raise ValueError(
                    f"{asked_by} needs losses whose reduction is a mean, which does not depend on "
                    f"batch_size; got reduction={loss.reduction!r} of {loss.name}"
                )
        if self._sample is None:
            ignored = heads[0].ignore_class if len(losses) == 1 else None
            self._sample = RowSample(asked_by, self._data(), self.rows, self.seed, ignored)
        self._batches = self._sample.batches(self.batch_size)
        self._means = RowMeans(self.model)
        self.open_log()
        self.history = []
        self.values: dict[str, float] = {}
        # Steps taken, steps before this epoch, and its number. If `Checkpoint` continues within an
        # epoch, it calls `on_train_batch_end` for earlier steps.
        self.step, self._before, self._epoch = 0, 0, -1
        self.best: float | None = None
        self.best_step, self.wait = 0, 0
        self.best_weights: list[Any] | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if epoch != self._epoch:
            self._epoch, self._before = epoch, self.step

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        last, step = self.step, self._before + batch + 1
        if step > last:
            self.step = step
            if self.every is not None and step // self.every > last // self.every:
                self._measure()
        if logs is not None:
            logs.update(self.values)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.history or self.history[-1]["step"] < self.step:
            self._measure()
        twice = sorted(set(self.values) & set(logs or {}))
        if twice:
            raise ValueError(
                "fit must get no validation_data beside SampledValidation, which writes values of "
                f"the same names; got both of {', '.join(twice)}"
            )
        if logs is not None:
            logs.update(self.values)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)
        if self.restore_best and self.best_weights is not None:
            self.model.set_weights(self.best_weights)

    def _measure(self) -> None:
        values = self._means.measure(*self._batches)
        self.values = {_PREFIX + name: value for name, value in values.items()}
        self._write_layout()
        self.note(self.step, self.values)
        self.write(self.step, _bands(self.values))
        if self.patience is not None or self.restore_best:
            self._compare()

    def _compare(self) -> None:
        """Stores the best value, and stops training after `patience` validations without one."""
        if self.monitor not in self.values:
            raise ValueError(
                f"monitor must be one of {', '.join(self.values)}; got {self.monitor!r}"
            )
        value, sign = self.values[self.monitor], -1 if self._is_up() else 1
        worst = math.inf if self.best is None else sign * self.best - self.min_delta
        if sign * value < worst:  # False for NaN
            self.best, self.best_step, self.wait = value, self.step, 0
            if self.restore_best:
                self.best_weights = self.model.get_weights()
            return
        self.wait += 1
        if self.patience is not None and self.wait >= self.patience:
            self.model.stop_training = True

    def _is_up(self) -> bool:
        if self.mode != "auto":
            return self.mode == "max"
        direction = self._means.directions().get(self.monitor.removeprefix(_PREFIX))
        if direction is None:
            raise ValueError(
                f"mode must be 'min' or 'max' where it is not known what is better of "
                f"{self.monitor!r}; got 'auto'"
            )
        return direction == "up"

    def _write_layout(self) -> None:
        """Tells TensorBoard, once, to draw values with their bands."""
        if self._writer is None or self.history:
            return
        names = [name for name in self.values if name + STANDARD_ERROR in self.values]
        metadata = tf.compat.v1.SummaryMetadata()
        metadata.plugin_data.plugin_name = _LAYOUT
        with self._writer.as_default():
            tf.summary.write(f"{_LAYOUT}__config__", tf.constant(_layout(names)), 0, metadata)


def _bands(values: dict[str, float]) -> dict[str, float]:
    """Returns the values less and plus one standard error."""
    found: dict[str, float] = {}
    for name, value in values.items():
        error = values.get(name + STANDARD_ERROR)
        if error is not None:
            found |= {f"{name}/lower": value - error, f"{name}/upper": value + error}
    return found


def _layout(names: list[str]) -> bytes:
    """Returns the `tensorboard.custom_scalar.Layout` of a chart with a band for each value.

    Its protocol buffers belong to the package `tensorboard`, which need not be installed.
    """
    charts = b""
    for name in names:
        tags = (name, f"{name}/lower", f"{name}/upper")
        series = b"".join(wire_field(place + 1, tag.encode()) for place, tag in enumerate(tags))
        charts += wire_field(2, wire_field(1, name.encode()) + wire_field(3, wire_field(1, series)))
    return wire_field(2, wire_field(1, _PREFIX.rstrip("_").encode()) + charts)
