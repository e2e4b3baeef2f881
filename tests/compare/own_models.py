# SPDX-License-Identifier: Apache-2.0
"""Models and data as a user may have them."""

from __future__ import annotations

import keras
import numpy as np

CLASSES, WIDTH, EXAMPLES = 40, 6, 96
X = np.random.default_rng(0).normal(size=(EXAMPLES, WIDTH)).astype("float32")
Y = np.arange(EXAMPLES) % CLASSES


def make_model(**options):
    """A model whose steps run eagerly by default: to trace graphs takes longer than few steps."""
    model = keras.Sequential(
        [
            keras.Input([WIDTH]),
            keras.layers.Dense(8, "relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES, "softmax"),
        ]
    )
    options = {"loss": "sparse_categorical_crossentropy", "run_eagerly": True, **options}
    model.compile(keras.optimizers.Adam(0.01), **options)
    return model
