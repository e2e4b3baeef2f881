# SPDX-License-Identifier: Apache-2.0
"""Ages of rows and the current slot were int32 once: files from then load, and train on."""

from __future__ import annotations

import zipfile

import h5py
import keras
import numpy as np
import pytest

import tfx_largeout as tlo
from tfx_largeout.callbacks.model_state import ModelState

CLASSES, WIDTH = 40, 6
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, WIDTH)).astype("float32"), RNG.integers(0, CLASSES, 32)


def sampled_head():
    sampler, optimizer = tlo.samplers.Uniform(8), tlo.optimizers.RowAdam(0.05)
    return tlo.heads.SampledHead(CLASSES, sampler, optimizer, seed=3)


def factored_head():
    return tlo.heads.FactoredHead(CLASSES, 0.01)


# What each head counts with, and what it counted with then.
HEADS = {
    "uint32": (sampled_head, tlo.losses.ComplementarySum, "RowAdam.age"),
    "int64": (factored_head, tlo.losses.ZLoss, "FactoredHead.current_slot"),
}
every_head = pytest.mark.parametrize("dtype", HEADS)


def trained(dtype, steps=3):
    make_head, make_loss, _ = HEADS[dtype]
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), make_head()])
    model.compile(keras.optimizers.SGD(0.1), loss=make_loss())
    if steps:
        model.fit(X, Y, batch_size=8, epochs=steps, verbose=0)
    return model


def assert_same(model, other):
    for own, theirs in zip(model.variables, other.variables, strict=True):
        assert own.dtype == theirs.dtype
        np.testing.assert_array_equal(own, theirs)


def with_int32(path, dtype):
    """Writes a `.keras` file as it would have been then; returns how many arrays differ."""
    weights = path.with_suffix(".h5")
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    weights.write_bytes(entries["model.weights.h5"])
    changed = []
    with h5py.File(weights, "r+") as file:
        found = []
        file.visititems(lambda name, item: found.append((name, item)))
        for name, item in found:
            if isinstance(item, h5py.Dataset) and item.dtype == dtype:
                values = item[()]
                del file[name]
                file.create_dataset(name, data=np.asarray(values, np.int32))
                changed.append(name)
    entries["model.weights.h5"] = weights.read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return changed


@every_head
def test_a_keras_file(dtype, tmp_path):
    path = tmp_path / "model.keras"
    model = trained(dtype)
    model.save(path)
    assert with_int32(path, dtype)
    loaded = keras.models.load_model(path)
    assert_same(model, loaded)
    for m in (model, loaded):
        m.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    assert_same(model, loaded)


@every_head
def test_a_checkpoint(dtype):
    kind = HEADS[dtype][2]
    model, fresh = trained(dtype), trained(dtype, steps=0)
    fresh.optimizer.build(fresh.trainable_variables)
    state, there = ModelState(model), ModelState(fresh)
    facts, arrays = state.facts(), {name: read() for name, read in state.arrays()}
    was_int32 = [name for name in arrays if name.endswith(f" {kind}")]
    assert was_int32
    for name in was_int32:
        arrays[name] = arrays[name].astype(np.int32)
    for description in facts["variables"]:
        if description[0] == kind:
            assert description[1] == dtype
            description[1] = "int32"
    there.check(facts)
    there.restore(facts, arrays.__getitem__)
    assert_same(model, fresh)


@every_head
def test_int32_in_the_place_of_floats_is_refused(dtype):
    state = ModelState(trained(dtype, steps=1))
    facts = state.facts()
    next(found for found in facts["variables"] if found[1] == "float32")[1] = "int32"
    with pytest.raises(ValueError, match=r"checkpoint must be one of this model.*int32"):
        state.check(facts)
