# SPDX-License-Identifier: Apache-2.0
"""The losses of docs/guides/own_loss.md run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import thorough

import tfx_largeout as tlo

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "own_loss.md"
CLASSES, WIDTH, EXAMPLES = 30, 6, 40
RNG = np.random.default_rng(8)
X = RNG.standard_normal((EXAMPLES, WIDTH)).astype("float32")
LABELS = RNG.integers(0, CLASSES, EXAMPLES)


def optimizer():
    return tlo.optimizers.RowSGD(0.05)


# The heads for a recipe, and whether `evaluate` returns the softmax cross-entropy.
RECIPES = {
    "SmallLogPartition": ([lambda: tlo.heads.DenseHead(CLASSES)], False),
    "CentredLogits": (
        [
            lambda: tlo.heads.DenseHead(CLASSES),
            lambda: tlo.heads.ExactSoftmaxHead(CLASSES, optimizer(), 5, seed=1),
            lambda: tlo.heads.ExactSoftmaxHead(CLASSES, optimizer(), backward="all"),
        ],
        False,
    ),
    "UnitTargets": (
        [lambda: tlo.heads.FactoredHead(CLASSES, 0.01), lambda: tlo.heads.DenseHead(CLASSES)],
        False,
    ),
    **{
        name: (
            [lambda: tlo.heads.SampledHead(CLASSES, tlo.samplers.Uniform(9), optimizer(), seed=1)],
            True,
        )
        for name in ("SquaredHinge", "SquaredHingeOverWorkers")
    },
    "FocalLoss": ([lambda: tlo.heads.HierarchicalSoftmaxHead(CLASSES, optimizer())], True),
}


@pytest.fixture(scope="module")
def recipes():
    """The names that the code blocks of the page define."""
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    return names


def test_every_loss_of_the_page_is_tried(recipes):
    written = {
        name
        for name, value in recipes.items()
        if isinstance(value, type) and value.__module__ == "builtins"
    }
    assert written == set(RECIPES)


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, i) for name, (heads, _) in RECIPES.items() for i in range(len(heads))],
)
@pytest.mark.parametrize("run_eagerly", [False, *thorough(True)], ids=["graph", "eager"])
def test_a_recipe_trains_and_evaluates(recipes, name, number, run_eagerly):
    heads, is_cross_entropy = RECIPES[name]
    loss, head = recipes[name](), heads[number]()
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), head])
    model.compile(keras.optimizers.SGD(0.05), loss=loss, run_eagerly=run_eagerly)
    losses = [
        model.fit(np.tile(X, (times, 1)), np.tile(LABELS, times), 10, verbose=0).history["loss"][0]
        for times in (1, 28, 1)
    ]
    assert losses[-1] < 0.9 * losses[0]
    logits = model.predict(X, verbose=0)
    if is_cross_entropy:
        expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(LABELS, logits)
    else:
        kind = loss.trains_on
        dense = tlo.heads.DenseHead(CLASSES, use_bias=False, kernel_initializer="identity")
        dense.build((None, CLASSES))
        labels = tlo.labels.normalize_labels(LABELS, CLASSES)
        statistics = dense.statistics(kind, tf.constant(logits), labels, training=True)
        expected = tf.reduce_mean(loss.from_statistics(statistics))
    np.testing.assert_allclose(model.evaluate(X, LABELS, verbose=0), expected, rtol=1e-4)
