# SPDX-License-Identifier: Apache-2.0
"""save_model in one process; over workers it is tested in tests/distribute."""

from __future__ import annotations

import random
from unittest import mock

import keras
import numpy as np
import pytest

import tfx_largeout as tlo
from tfx_largeout.models.save_model import _as_if_nothing_was_made


def small_model():
    head = tlo.heads.SampledHead(9, tlo.samplers.Uniform(3), tlo.optimizers.RowSGD(0.1), seed=1)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), head])
    model.compile("adam", tlo.losses.ComplementarySum())
    return model


@pytest.mark.parametrize("name", ["x.keras", "x.weights.h5"])
def test_one_process_writes_what_keras_writes(name, tmp_path):
    model, other = small_model(), small_model()
    tlo.save_model(model, tmp_path / name)
    if name.endswith(".keras"):
        other = keras.saving.load_model(tmp_path / name)
    else:
        other.load_weights(tmp_path / name)
    for own, loaded in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(own, loaded)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_that_is_there_stays_without_overwrite(tmp_path):
    path = tmp_path / "x.keras"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="must be free with overwrite=False"):
        tlo.save_model(small_model(), path, overwrite=False)
    assert path.read_text() == "mine"


def test_arguments(tmp_path):
    path = tmp_path / "x.keras"
    with pytest.raises(ValueError, match="overwrite must be True or False; got 'no'"):
        tlo.save_model(small_model(), path, overwrite="no")
    with pytest.raises(TypeError, match="model must be a Keras model; got 'model'"):
        tlo.save_model("model", path)
    assert not path.exists()


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "x.keras"
    path.write_text("mine")

    def half(unfinished):
        unfinished.write_text("half")
        raise OSError(28, "No space left on device")

    model = small_model()
    with (
        mock.patch.object(model, "save", half),
        pytest.raises(OSError, match=r"No space .*x\.keras"),
    ):
        tlo.save_model(model, path)
    assert path.read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_other_ends_of_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"filepath must end with .keras or .weights.h5; got"):
        tlo.save_model(small_model(), tmp_path / "x.h5")


def test_seeds_and_names_are_drawn_as_if_nothing_had_been_made():
    small_model()
    state = random.getstate()
    with _as_if_nothing_was_made():
        inside = keras.layers.Dense(2)
        keras.layers.Dense(2).build((1, 1))
    assert random.getstate() == state
    assert keras.layers.Dense(2).name == inside.name
