# SPDX-License-Identifier: Apache-2.0
"""Progress: one line a head; on a terminal it is rewritten, and has a bar."""

from __future__ import annotations

import os
from typing import TextIO

from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.settings import TrainingSettings

_BAR_WIDTH = 20


class Progress:
    """Shows how far a head is.

    On a terminal its line, with a bar, is rewritten with each event; elsewhere there is a new line
    for each evaluation.

    Args:
        stream: Where to write.
        settings: How long the heads train.
        heads: Names of all that `begin` will get; for the width.
    """

    def __init__(self, stream: TextIO, settings: TrainingSettings, heads: list[str]) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._settings = settings
        self._width = max(map(len, heads), default=0)
        self._name = ""
        self._num_points = 0
        self._loss: float | None = None

    def begin(self, head: str) -> None:
        """Tells that a head's process starts."""
        self._name, self._num_points, self._loss = f"{head:{self._width}}", 0, None
        self._show(f"{self._name}  starting")

    def update(self, result: HeadResult, loss: float | None) -> None:
        """Shows a result that has changed, and the latest training loss."""
        self._loss = self._loss if loss is None else loss
        if self._live or len(result.curve) > self._num_points:
            self._num_points = len(result.curve)
            self._show(self._line(result))

    def end(self, result: HeadResult) -> None:
        """Leaves a last line behind."""
        if result.status == "failed":
            self._show(f"{self._name}  failed: {result.error}")
        elif self._live:
            self._show(self._line(result))
        if self._live:
            self._stream.write("\n")
            self._stream.flush()

    def _line(self, result: HeadResult) -> str:
        if not result.steps_per_epoch:
            return "  ".join([self._name, *self._of_peer(result)])
        parts = [self._name, self._share(result), f"step {result.steps:,}"]
        if self._live:
            parts[1:2] = [self._bar(result), parts[1] + self._left(result)]
        if self._settings.epochs is None:
            parts.append(f"epoch {result.epochs:.2f}")
        if self._loss is not None:
            parts.append(f"loss {self._loss:.3f}")
        if result.curve:
            parts.append(f"P@1 {100 * result.curve[-1].precision_at_1:.2f}%")
        if result.status == "interrupted":
            parts.append("interrupted")
        return "  ".join(parts)

    def _of_peer(self, result: HeadResult) -> list[str]:
        if not result.curve:
            return [result.stage]
        return [f"{result.seconds:.1f} s", f"P@1 {100 * result.curve[-1].precision_at_1:.2f}%"]

    def _bar(self, result: HeadResult) -> str:
        full = round(min(self._done(result), 1.0) * _BAR_WIDTH)
        return f"[{'#' * full:.<{_BAR_WIDTH}}]"

    def _left(self, result: HeadResult) -> str:
        """Says how many seconds of training are left, once that is known."""
        done = self._done(result)
        if not done or not result.seconds:
            return ""
        return f", {result.seconds * max(1 / done - 1, 0):.0f} s left"

    def _done(self, result: HeadResult) -> float:
        steps_per_epoch = result.steps_per_epoch or 1
        return self._settings.fraction_done(result.steps, result.seconds, steps_per_epoch)

    def _share(self, result: HeadResult) -> str:
        if self._settings.epochs is not None:
            return f"{result.seconds:5.1f} s  epoch {result.epochs:.2f}/{self._settings.epochs:g}"
        return f"{result.seconds:5.1f}/{self._settings.budget:g} s"

    def _show(self, line: str) -> None:
        if self._live:
            columns = _columns(self._stream)
            self._stream.write(f"\r{line[: columns - 1]}\x1b[K")
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
