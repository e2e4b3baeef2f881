# SPDX-License-Identifier: Apache-2.0
"""The case for a misuse: a head in a small model that was trained for a step."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from conformance.heads_table import Row

CLASSES, WIDTH, EXAMPLES = 24, 4, 6


class Case:
    """A head of the conformance table in a model, made when it is first asked for.

    Attributes:
        row: The head's row.
        folder: An empty folder.
        x: Inputs, `[EXAMPLES, WIDTH]`.
        y: Labels, `[EXAMPLES]`.
    """

    def __init__(self, row: Row, folder: Path) -> None:
        self.row, self.folder = row, folder
        rng = np.random.default_rng(5)
        self.x = rng.normal(size=(EXAMPLES, WIDTH)).astype("float32")
        self.y = rng.integers(0, CLASSES, EXAMPLES)
        self._before: list[np.ndarray] | None = None

    def make_head(self, num_classes: Any = CLASSES, **arguments: Any) -> Any:
        width = {"of_width": WIDTH} if self.row.is_tied else {}
        return self.row.make_head(num_classes, **width, **arguments)

    def make_model(self, **arguments: Any) -> keras.Model:
        """Returns a new model, not compiled: a trunk and the head."""
        inputs = keras.Input((WIDTH,))
        hidden = keras.layers.Dense(WIDTH, activation="tanh", name="trunk")(inputs)
        return keras.Model(inputs, self.make_head(**arguments)(hidden))

    def compile(self, model: keras.Model, **arguments: Any) -> keras.Model:
        """Compiles a model as in the table, except for some arguments."""
        defaults = {"optimizer": self.row.make_optimizer(), "loss": self.row.make_loss()}
        model.compile(**{**defaults, **arguments})
        return model

    @functools.cached_property
    def model(self) -> keras.Model:
        """The model whose state an error must not change."""
        model = self.compile(self.make_model(), run_eagerly=True)
        model.fit(self.x, self.y, verbose=0)
        self._before = _state(model)
        return model

    @property
    def head(self) -> Any:
        return self.model.layers[-1]

    def fit(self, y: Any = None, x: Any = None, graph: bool = False, **arguments: Any) -> Any:
        """Trains for an epoch of one step, eagerly, which is quicker, or in a graph."""
        self.model.run_eagerly = not graph
        self.model.make_train_function(force=True)
        arguments = {"shuffle": False, "verbose": 0, **arguments}
        return self.model.fit(self.x if x is None else x, self.y if y is None else y, **arguments)

    def fit_with(self, **compile_arguments: Any) -> Any:
        """Compiles again, and trains in a graph."""
        self.compile(self.model, **compile_arguments)
        return self.fit(graph=True)

    def fit_batches(self, *tensors: Any) -> Any:
        """Trains on one batch from a `tf.data.Dataset`, eagerly."""
        self.model.run_eagerly = True
        self.model.make_train_function(force=True)
        return self.model.fit(tf.data.Dataset.from_tensors(tensors), verbose=0)

    def is_unchanged(self) -> bool:
        """Whether the misuse left all weights, and the head's optimizer, unchanged."""
        if self._before is None:
            return True
        now = _state(self.model)
        return all(np.array_equal(a, b) for a, b in zip(self._before, now, strict=True))


def steps_of(head: Any) -> int:
    """How many steps a head with a count of steps has seen."""
    return int(getattr(head, "optimizer", head).iterations)


def _state(model: keras.Model) -> list[np.ndarray]:
    # The count of draws belongs to a random generator, which advances like Keras's.
    weights = [weight for weight in model.weights if not weight.path.endswith("/draws")]
    for layer in model.layers:
        optimizer = getattr(layer, "optimizer", None)
        weights += [] if optimizer is None else optimizer.variables
    return [keras.ops.convert_to_numpy(weight) for weight in weights]
