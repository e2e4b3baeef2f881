# SPDX-License-Identifier: Apache-2.0
"""Files that `load_state` can't read: the error names them, and the state is unchanged."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

import tfx_largeout as tlo


@pytest.fixture(scope="module")
def trainer():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(5)])
    model.compile(loss="mse")
    made = tlo.hessian_free.Trainer()
    made.fit(model, np.ones((8, 4), "float32"), np.ones((8, 5), "float32"), epochs=1, verbose=0)
    return made


def numbers_without(trainer, *left_out):
    numbers = json.loads(str(trainer.get_state()["state"]))
    return json.dumps({name: value for name, value in numbers.items() if name not in left_out})


@pytest.mark.parametrize(
    "fault", ["cut", "empty", "header", "one_array", "no_json", "no_parts", "no_damping"]
)
def test_a_damaged_file(fault, trainer, tmp_path):
    path = tmp_path / "state.npz"
    trainer.save_state(path)
    content = path.read_bytes()
    if fault == "one_array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    elif fault.startswith("no_"):
        arrays = trainer.get_state()
        lacks = fault.removeprefix("no_")
        arrays["state"] = "{" if fault == "no_json" else numbers_without(trainer, lacks)
        np.savez(path, **arrays)
    else:
        path.write_bytes({"cut": content[:-99], "empty": b"", "header": bytes(99)}[fault])
    before = trainer.get_state()
    with pytest.raises(ValueError, match=r"state\.npz: "):
        trainer.load_state(path)
    after = trainer.get_state()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_no_file(trainer, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        trainer.load_state(tmp_path / "none.npz")
