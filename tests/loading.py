# SPDX-License-Identifier: Apache-2.0
"""A saved and loaded model trains on as the original does."""

from __future__ import annotations

import keras
import numpy as np


def assert_goes_on_when_loaded(model, x, y, folder, **fit):
    """Trains a model and the one loaded from its file, which stay the same; returns the second."""
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    for each in (model, loaded):
        each.fit(x, y, shuffle=False, verbose=0, **fit)
    for ours, theirs in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)
    return loaded
