# SPDX-License-Identifier: Apache-2.0
"""TrainerState: all that one iteration hands to the next."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.hessian_free.objective import Gradient

_FORMAT = 1


@dataclasses.dataclass
class TrainerState:
    """What must be kept to go on exactly as if nothing had happened in between.

    Attributes:
        damping: lambda of the next iteration.
        generator: Draws samples.
        iteration: Iterations so far, refused ones included.
        parameters: theta `[n]` after the last one; None before the first.
        loss: L(theta) there.
        start: d_0 `[n]` for conjugate gradients; None is 0.
        gradient: That of the last iteration, if its step was refused and theta is the same.
        refusals: How many steps with that gradient were refused.
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
        """Says whether theta `[n]` is where the last iteration ended."""
        return self.parameters is not None and bool(tf.reduce_all(self.parameters == theta))

    def save(self, path: str | Path, parts: dict[str, Any]) -> None:
        """Writes what `to_arrays` returns to an `.npz` file.

        The file appears whole or not at all.
        """
        path = Path(path)
        unfinished = path.with_name(path.name + ".tmp")
        with unfinished.open("wb") as file:
            arrays: dict[str, Any] = self.to_arrays(parts)
            np.savez(file, **arrays)
        os.replace(unfinished, path)

    @classmethod
    def load(cls, path: str | Path, parts: dict[str, Any]) -> TrainerState:
        """Reads what `save` wrote. Errors: as `from_arrays`."""
        with np.load(path, allow_pickle=False) as file:
            return cls.from_arrays(dict(file), parts)

    def to_arrays(self, parts: dict[str, Any]) -> dict[str, np.ndarray]:
        """Returns the state, and that of `parts` with a `state` method, as arrays."""
        numbers: dict[str, Any] = {
            "format": _FORMAT,
            "damping": self.damping,
            "iteration": self.iteration,
            "loss": self.loss,
            "refusals": self.refusals,
            "data_points": self.data_points,
            "learning_rate": self.learning_rate,
            "generator": self.generator.bit_generator.state,
            "parts": {name: type(part).__name__ for name, part in parts.items()},
        }
        arrays: dict[str, Any] = {"parameters": self.parameters, "start": self.start}
        if self.gradient is not None:
            arrays["gradient"] = self.gradient.vector
            numbers["gradient"] = [self.gradient.loss, self.gradient.size]
        arrays = {name: np.asarray(value) for name, value in arrays.items() if value is not None}
        for name, part in parts.items():
            arrays |= {f"{name}/{key}": value for key, value in part.state().items()}
        return {**arrays, "state": np.array(json.dumps(numbers))}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], parts: dict[str, Any]) -> TrainerState:
        """Makes a state of what `to_arrays` returned; `parts` take back their own.

        Raises:
            ValueError: It has another format, or was saved with parts of other classes.
        """
        numbers = json.loads(str(arrays.get("state", "{}")))
        if numbers.get("format") != _FORMAT:
            raise ValueError(f"it must be a state of format {_FORMAT}; got {numbers.get('format')}")
        classes = {name: type(part).__name__ for name, part in parts.items()}
        if numbers["parts"] != classes:
            raise ValueError(f"the state must be of {classes}; got one of {numbers['parts']}")
        for name, part in parts.items():
            own = f"{name}/"
            state = {key: value for key, value in arrays.items() if key.startswith(own)}
            part.restore({key.removeprefix(own): value for key, value in state.items()})
        generator = np.random.default_rng()
        generator.bit_generator.state = numbers["generator"]
        tensors: dict[str, Any] = {
            name: tf.constant(arrays[name]) if name in arrays else None
            for name in ("parameters", "start", "gradient")
        }
        vector, gradient = tensors.pop("gradient"), None
        if vector is not None:
            loss, size = numbers["gradient"]
            gradient = Gradient(vector, loss, size, noise=None)
        names = ("damping", "iteration", "loss", "refusals", "data_points", "learning_rate")
        kept: dict[str, Any] = {name: numbers[name] for name in names}
        return cls(generator=generator, gradient=gradient, **tensors, **kept)
