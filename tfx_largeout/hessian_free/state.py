# SPDX-License-Identifier: Apache-2.0
"""TrainerState: the state between two iterations."""

from __future__ import annotations

import dataclasses
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.hessian_free.objective import Gradient
from tfx_largeout.written_whole import written_whole

_FORMAT = 1
# Errors of NumPy for a damaged file; TypeError: it holds one array.
_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, TypeError, struct.error)
_NUMBERS = ("damping", "iteration", "loss", "refusals", "data_points", "learning_rate")


@dataclasses.dataclass
class TrainerState:
    """The state needed to continue exactly as an uninterrupted run.

    Attributes:
        damping: lambda of the next iteration.
        generator: Draws samples.
        iteration: Iterations so far, including rejected ones.
        parameters: theta `[n]` after the last one; None before the first.
        loss: L(theta) there.
        start: d_0 `[n]` for conjugate gradients; None is 0.
        gradient: The gradient of the last iteration, if its step was rejected and theta is
            unchanged.
        refusals: The number of rejected steps with this gradient.
        data_points: Examples that went through the model so far.
        learning_rate: The rate of the compiled optimizer when training began; None before.
    """

    damping: float
    generator: np.random.Generator
    iteration: int = 0
    parameters: tf.Tensor | None = None
    loss: float = 0.0
    start: tf.Tensor | None = None
    gradient: Gradient | None = None
    refusals: int = 0
    data_points: int = 0
    learning_rate: float | None = None

    def is_at(self, theta: tf.Tensor) -> bool:
        """Returns whether theta `[n]` equals the end of the last iteration."""
        return self.parameters is not None and bool(tf.reduce_all(self.parameters == theta))

    def save(self, path: str | Path, parts: dict[str, Any]) -> None:
        """Writes the result of `to_arrays` to an `.npz` file, which appears whole or not at all."""
        arrays: dict[str, Any] = self.to_arrays(parts)
        with written_whole(path) as unfinished, unfinished.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | Path, parts: dict[str, Any]) -> TrainerState:
        """Reads a file of `save`. Errors: as `from_arrays`, with the name of the file."""
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = dict(file)
        except _DAMAGES as error:
            raise ValueError(
                f"{path}: it must be a whole file of save_state; got one that NumPy can't "
                f"read ({type(error).__name__}: {error})"
            ) from error
        try:
            return cls.from_arrays(arrays, parts)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def to_arrays(self, parts: dict[str, Any]) -> dict[str, np.ndarray]:
        """Returns the state, and the state of `parts` with a `state` method, as arrays."""
        numbers = {name: getattr(self, name) for name in _NUMBERS} | {
            "format": _FORMAT,
            "generator": self.generator.bit_generator.state,
            "parts": _classes(parts),
        }
        arrays = {"parameters": self.parameters, "start": self.start}
        if self.gradient is not None:
            arrays["gradient"] = self.gradient.vector
            numbers["gradient"] = [self.gradient.loss, self.gradient.size]
        for name, part in parts.items():
            arrays |= {f"{name}/{key}": value for key, value in part.state().items()}
        arrays["state"] = json.dumps(numbers)
        return {name: np.asarray(value) for name, value in arrays.items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], parts: dict[str, Any]) -> TrainerState:
        """Creates a state from the result of `to_arrays`, and restores `parts`.

        Raises:
            ValueError: It has another format, or was saved with parts of other classes.
        """
        numbers = json.loads(str(arrays.get("state", "{}")))
        if numbers.get("format") != _FORMAT:
            raise ValueError(f"it must be a state of format {_FORMAT}; got {numbers.get('format')}")
        classes = _classes(parts)
        if numbers["parts"] != classes:
            raise ValueError(f"the state must be of {classes}; got one of {numbers['parts']}")
        generator = np.random.default_rng()
        generator.bit_generator.state = numbers["generator"]
        vectors = ("parameters", "start", "gradient")
        theta, start, g = (tf.constant(arrays[v]) if v in arrays else None for v in vectors)
        gradient = None
        if g is not None:
            loss, size = numbers["gradient"]
            gradient = Gradient(g, loss, size, noise=None)
        state = cls(
            generator=generator,
            parameters=theta,
            start=start,
            gradient=gradient,
            **{name: numbers[name] for name in _NUMBERS},
        )
        for name, part in parts.items():  # last, so that nothing has changed if the rest is invalid
            keys = [key for key in arrays if key.startswith(f"{name}/")]
            part.restore({key.removeprefix(f"{name}/"): arrays[key] for key in keys})
        return state


def _classes(parts: dict[str, Any]) -> dict[str, str]:
    return {name: type(part).__name__ for name, part in parts.items()}
