# SPDX-License-Identifier: Apache-2.0
"""StepMeasurements: base of callbacks that measure every few steps and store the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf


class StepMeasurements(keras.callbacks.Callback):
    """Stores measurements in `history`, and writes them for TensorBoard if there is a `log_dir`."""

    def __init__(self, log_dir: str | Path | None) -> None:
        super().__init__()
        self.log_dir = log_dir
        self.history: list[dict[str, float]] = []
        self._writer: Any = None

    def open_log(self) -> None:
        """Creates the file of this run."""
        if self.log_dir is not None:
            self._writer = tf.summary.create_file_writer(str(self.log_dir))

    def note(self, step: int, values: dict[str, float]) -> None:
        """Stores and writes the values of a step."""
        self.history.append({"step": step, **values})
        self.write(step, values)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes values to the file, if there is one."""
        if self._writer is None:
            return
        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)
        self._writer.flush()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._writer is not None:
            self._writer.close()


def wire_field(number: int, content: bytes) -> bytes:
    """Returns a field of bytes, or of a message, in protocol buffers' wire format."""
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content
