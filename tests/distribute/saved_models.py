# SPDX-License-Identifier: Apache-2.0
"""Models that workers train, save as files of Keras, and load.

As a program: python saved_models.py FOLDER KIND..., with TF_CONFIG. Each worker writes its results.
"""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np

import tfx_largeout as tlo
from tfx_largeout.callbacks.model_state import ModelState

sys.path.insert(0, str(Path(__file__).parents[1]))
from distribute.checkpoints import model_of, of_epoch

NOT_SAVED = ("HashIndex.", ".seed")  # tables are rebuilt; Keras's files have no seeds


def made(kind):
    if kind == "bfloat16":
        keras.config.set_dtype_policy("bfloat16")  # W is, too
    model = model_of("sampled" if kind == "bfloat16" else kind)
    keras.config.set_dtype_policy("float32")
    return model


def state(model):
    """Weights and optimizers."""
    arrays = {name: read() for name, read in ModelState(model, metrics=False).arrays()}
    return {n: array for n, array in arrays.items() if not any(word in n for word in NOT_SAVED)}


def check_saved_and_loaded(kind, folder):
    """A file, and only weights: workers load what they saved, bit for bit, and continue."""
    rank = tlo.distribute.current().rank
    model = made(kind)
    model.fit(tlo.distribute.shard(of_epoch(0)), shuffle=False, verbose=0)
    if kind == "factored":
        model.layers[-1].settle()  # as one process does when it loads the file
    tlo.save_model(model, folder / f"{kind}.keras")
    tlo.save_model(model, folder / f"{kind}.weights.h5")
    expected = state(model)
    np.savez(folder / f"{kind}-{rank}.npz", **expected)
    loaded = keras.saving.load_model(folder / f"{kind}.keras")
    assert_same(state(loaded), expected)
    weights = made(kind)
    weights.load_weights(folder / f"{kind}.weights.h5")
    for own, other in zip(*(m.layers[-1].saved_weights for m in (weights, model)), strict=True):
        np.testing.assert_array_equal(own, other, err_msg=own.path)
    loaded.fit(tlo.distribute.shard(of_epoch(1)), shuffle=False, verbose=0)
    assert all(np.isfinite(loaded.evaluate(tlo.distribute.shard(of_epoch(1)), verbose=0)).ravel())


def assert_same(one, two):
    assert len(one) == len(two) > 8
    for (name, array), other in zip(one.items(), two.values(), strict=True):
        np.testing.assert_array_equal(array, other, err_msg=name)


if __name__ == "__main__":
    tlo.distribute.connect(timeout=180, step_timeout=120)
    for kind in sys.argv[2:]:
        check_saved_and_loaded(kind, Path(sys.argv[1]))
        print(kind, flush=True)
