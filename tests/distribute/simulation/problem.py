# SPDX-License-Identifier: Apache-2.0
"""A tiny problem, drawn by its seed, and its solution by one process, straight from the formulas.

Nothing of the package is used here.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

RATE, WORDS, BITS = 0.1, 5, 2
Weights = dict[str, np.ndarray]


class Problem:
    """Data and a model that sends `kind` in a step: `examples` or `rows` of labels."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.seed = seed
        self.kind = ("examples", "rows")[seed % 2]
        self.classes = int(draw.integers(5, 12))
        self.width = int(draw.integers(1, 4))
        self.per_epoch = int(draw.integers(1, 4))
        self.steps = int(draw.integers(2, 9))
        self.every = int(draw.choice([1, 1, 2, 3]))
        self.keep = int(draw.integers(1, 4))
        self._planes = draw.normal(size=[3, self.width, BITS])

    def start(self) -> Weights:
        draw = np.random.default_rng([self.seed, 0])
        shapes = {"kernel": [self.classes, self.width], "embedding": [WORDS, self.width]}
        return {n: draw.normal(size=s) for n, s in {**shapes, "scale": [self.width]}.items()}

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Words `[B]`, labels `[B, K]` padded with -1, and weights `[B]`, of a step."""
        draw = np.random.default_rng([self.seed, 1, step])
        size, labels = int(draw.integers(1, 8)), int(draw.integers(1, 3))
        y = draw.integers(-1, self.classes, [size, labels])
        words, weights = draw.integers(0, WORDS, size), draw.integers(0, 3, size) / 2
        if draw.random() < 1 / 16:
            y[:] = -1  # a step without labels
        return words, y, weights

    def codes(self, kernel: np.ndarray) -> np.ndarray:
        """The bucket of each row in each table, `[L, C]`."""
        return (kernel @ self._planes > 0) @ (1 << np.arange(BITS))

    def query(self, step: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 2, step]).integers(0, 1 << BITS, 3)

    @functools.cached_property
    def weights(self) -> list[Weights]:
        """The weights before each step, and after the last one."""
        return [weights for weights, _ in self._trained]

    @functools.cached_property
    def losses(self) -> list[float]:
        return [loss for _, loss in self._trained[:-1]]

    @functools.cached_property
    def _trained(self) -> list[tuple[Weights, float]]:
        weights, found = self.start(), []
        for step in range(self.steps):
            loss, gradients = self._step(weights, *self.batch(step))
            found.append((weights, loss))
            weights = {name: weights[name] - RATE * gradients[name] for name in weights}
        return [*found, (weights, 0.0)]

    def _step(self, weights: Weights, x: Any, y: Any, w: Any) -> tuple[float, Weights]:
        """Example after example, label after label."""
        kernel, scale, loss = weights["kernel"], weights["scale"], 0.0
        gradients = {name: np.zeros_like(array) for name, array in weights.items()}
        for word, labels, weight in zip(x, y, w / len(x), strict=True):
            row = weights["embedding"][word]
            h, of_h = row * scale, np.zeros(self.width)
            p = np.exp(kernel @ h)
            log_z = np.log(p.sum())
            p /= p.sum()
            for label in labels[labels >= 0]:
                if self.kind == "examples":
                    loss += weight * (log_z - kernel[label] @ h)
                    error = weight * (p - (np.arange(self.classes) == label))
                    gradients["kernel"] += np.outer(error, h)
                    of_h += error @ kernel
                else:
                    error = weight * (h - kernel[label])
                    loss += weight * np.sum((h - kernel[label]) ** 2) / 2
                    gradients["kernel"][label] -= error
                    of_h += error
            gradients["embedding"][word] += of_h * scale
            gradients["scale"] += of_h * row
        return loss, gradients
