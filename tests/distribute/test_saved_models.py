# SPDX-License-Identifier: Apache-2.0
"""Workers save a model that one process can load."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from distribute import checkpoints, saved_models
from distribute.run_workers import check_ended_well, run_workers

from tfx_largeout.callbacks.model_state import ModelState

PROGRAM = Path(saved_models.__file__)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kinds",
    [("indexed", "factored"), ("sampled", "dense", "bfloat16")],
    ids="-".join,
)
def test_one_process_loads_what_two_have_saved(kinds, tmp_path):
    """One test of several kinds, so that the workers are started once."""
    ended = run_workers(tmp_path, PROGRAM, 2, str(tmp_path), *kinds)
    check_ended_well(ended)
    for kind in kinds:
        model = keras.saving.load_model(tmp_path / f"{kind}.keras")
        check_rows_are_those_of_workers(model, tmp_path, kind)
        model.fit(checkpoints.of_epoch(1), shuffle=False, verbose=0)
        assert np.isfinite(model.evaluate(checkpoints.of_epoch(1), verbose=0))


def check_rows_are_those_of_workers(model, folder, kind):
    parts = [np.load(folder / f"{kind}-{rank}.npz") for rank in range(2)]
    whole, found = saved_models.state(model), ModelState(model, metrics=False)
    assert found.rows() == set()
    dealt = 0
    for name, array in whole.items():
        if array.shape and array.shape[0] == checkpoints.CLASSES:
            dealt += 1
            for rank, part in enumerate(parts):
                np.testing.assert_array_equal(array[rank::2], part[name], err_msg=name)
        else:
            np.testing.assert_array_equal(array, parts[0][name], err_msg=name)
    assert dealt >= (2 if kind == "factored" else 4)  # W, b and their slots; V and its marks
