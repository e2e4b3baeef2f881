# SPDX-License-Identifier: Apache-2.0
"""SampledValidation: exact validation on the same few rows, every so many steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, integer_argument, number_argument
from tfx_largeout.callbacks.row_means import STANDARD_ERROR, RowMeans
from tfx_largeout.callbacks.row_sample import RowSample
from tfx_largeout.callbacks.step_measurements import StepMeasurements
from tfx_largeout.losses.base import HeadLoss

_PREFIX = "val_"
_LAYOUT = "custom_scalars"  # TensorBoard's plugin of charts with a band


class SampledValidation(StepMeasurements):
    """Validates on a fixed random sample of rows, in time that does not grow with the data.

    The loss and the metrics that the model was compiled with are evaluated, exactly, at the end of
    each epoch and, with `every`, within epochs. Each goes into the logs as Keras has it, and with
    it the standard error of every value that is a mean, or a ratio of means, over rows:

        val_loss, val_loss_se, val_precision_at_1, val_precision_at_1_se, ...

    so that `EarlyStopping(monitor="val_loss")`, `ModelCheckpoint`, `ReduceLROnPlateau`,
    `TensorBoard` and the history work with them. They must stand behind this callback in `fit`.

    ```python
    validation = tlo.callbacks.SampledValidation(x, y, rows=16, every=1, patience=3)
    model.fit(x, y, epochs=2, callbacks=[validation], verbose=0)
    validation.history[-1]["val_loss"], validation.history[-1]["val_loss_se"]
    ```

    A value is what `evaluate` gives for the rows of the sample in one batch; memory is as for a
    batch of `batch_size`. For N rows with the values v_n, the standard error of their mean is

        se = sqrt(sum_n (v_n - mean)^2 / (N - 1) / N),

    and of ratios of sums, such as weighted means, by the delta method. It says how far the value is
    from the value on infinitely many rows of the same kind: there is no factor for a finite set of
    rows, and it is not 0 where the sample is all there are. Positions of a sequence count together,
    as one row. Two values of one model on the same rows differ by less than the errors say. Metrics
    that are no ratio of sums over rows, such as AUC, have none.

    Rows are chosen when training first begins, without replacement, among the rows with a label:
    from arrays, or by one pass over a data set, the same rows in either case. They are kept.

    Training with `patience` is stopped in the middle of an epoch, if need be. With `restore_best`
    the weights of the best measurement are put back at the end of the training, as `EarlyStopping`
    does it. `Checkpoint(callbacks=[validation])` saves the best value, the waiting, these weights
    and the history.

    With a `log_dir`, TensorBoard gets the values by the number of the step, and bands of one
    standard error below and above them, under "Custom scalars". Training is as without it, bit for
    bit, up to where it stops; metrics of the training go on in the middle of an epoch.

    Over several workers (see `tlo.distribute`) all give the same rows: the whole ones, and not
    their parts.

    Cost: O(rows C D) each time, in memory of a batch; the rows themselves, and with `restore_best`
    a copy of all weights.

    Args:
        x: Inputs, as `evaluate` takes them: arrays or tensors, dense, sparse or ragged, in any
            nesting; or batches `(x, y)` or `(x, y, weights)` as a `tf.data.Dataset`, a `PyDataset`
            or another iterable, which must end. Dense batches that differ in length, as padded
            sequences do, are padded: labels by -1, everything else by 0.
        y: Labels of arrays.
        sample_weight: Their weights. Default None: 1.
        rows: How many rows, or all where there are fewer. Default 2000.
        every: Steps from one validation to the next. Default None: only at the end of each epoch.
        batch_size: Rows of a batch. Default 256.
        seed: Of the choice. Default 0.
        monitor: What `patience` and `restore_best` look at. Default `"val_loss"`.
        mode: `"min"`, `"max"`, or `"auto"` (default): what is known to be better of the monitor.
        min_delta: By how much a better value must be better. Default 0.
        patience: After how many validations in turn without a better value training stops. Default
            None: it doesn't.
        restore_best: Default False.
        log_dir: Folder for TensorBoard's event files. Default None: none are written.

    Raises:
        ValueError: An argument is out of range. When training begins: no row has a label, or the
            data have no end. In training: there is no such `monitor`, or `"auto"` knows nothing of
            it; `fit` has `validation_data`, whose values have the same names.
        TypeError: When training begins: the data are none of these, or the model has no `HeadLoss`.
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
        self.restore_best = restore_best
        if y is None and sample_weight is not None:
            raise ValueError(
                "sample_weight must be None where x comes in batches, which may have weights"
            )
        data = x if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
        self._data = lambda: data  # what is no array is not saved by Checkpoint
        self._sample: RowSample | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        asked_by = type(self).__name__
        losses = keras.tree.flatten(getattr(self.model, "loss", None))
        heads = [loss for loss in losses if isinstance(loss, HeadLoss)]
        if not heads:
            raise TypeError(f"{asked_by} needs a model with a HeadLoss; got {self.model.loss!r}")
        if self._sample is None:
            ignored = heads[0].ignore_class if len(losses) == 1 else None
            self._sample = RowSample(asked_by, self._data(), self.rows, self.seed, ignored)
        self._batches = self._sample.batches(self.batch_size)
        self._means = RowMeans(self.model)
        self.open_log()
        self.history = []
        self.values: dict[str, float] = {}
        # Steps that are over, those before this epoch, and its number. Where `Checkpoint` goes on
        # within an epoch, it calls `on_train_batch_end` for steps that are over.
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
        """Keeps what is best, and stops the training where nothing better has come for long."""
        if self.monitor not in self.values:
            raise ValueError(
                f"monitor must be one of {', '.join(self.values)}; got {self.monitor!r}"
            )
        value, sign = self.values[self.monitor], -1 if self._is_up() else 1
        worst = math.inf if self.best is None else sign * self.best - self.min_delta
        if sign * value < worst:  # NaN is not
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
        series = b"".join(_field(place + 1, tag.encode()) for place, tag in enumerate(tags))
        charts += _field(2, _field(1, name.encode()) + _field(3, _field(1, series)))
    return _field(2, _field(1, _PREFIX.rstrip("_").encode()) + charts)


def _field(number: int, content: bytes) -> bytes:
    """Returns a field of bytes in protocol buffers' wire format."""
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content
