# SPDX-License-Identifier: Apache-2.0
"""Ages of rows, the current slot and indexes were int32 once: such files load, and train on."""

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


def head_with_an_index():
    index = tlo.indexes.HashIndex(tlo.indexes.DWTAHash(3), 2, 3, first_period=4)
    sampler, optimizer = tlo.samplers.LSHEmbedding(8), tlo.optimizers.RowSGD(0.05)
    return tlo.heads.SampledHead(CLASSES, sampler, optimizer, index=index, seed=3)


OF_AN_INDEX = ("elements", "entries", "starts", "touched_at", "built_at")

# What each head counts with, and what it counted with then.
HEADS = {
    "age": ("uint32", sampled_head, tlo.losses.ComplementarySum, ["RowAdam.age"]),
    "slot": ("int64", factored_head, tlo.losses.ZLoss, ["FactoredHead.current_slot"]),
    "index": (
        "uint32",
        head_with_an_index,
        tlo.losses.ComplementarySum,
        [f"HashIndex.{name}" for name in OF_AN_INDEX],
    ),
}
every_head = pytest.mark.parametrize("name", HEADS)


def trained(name, steps=3):
    _, make_head, make_loss, _ = HEADS[name]
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), make_head()])
    model.compile(keras.optimizers.SGD(0.1), loss=make_loss())
    if steps:
        model.fit(X, Y, batch_size=8, epochs=steps, verbose=0)
    if steps and name == "index":
        model.layers[-1].index.built_at.assign(np.full(3, 2**32 - 1, np.uint32))  # -1 then
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


@pytest.mark.thorough
@every_head
def test_a_keras_file(name, tmp_path):
    path = tmp_path / "model.keras"
    model = trained(name)
    model.save(path)
    assert with_int32(path, HEADS[name][0])
    loaded = keras.models.load_model(path)
    assert_same(model, loaded)
    for m in (model, loaded):
        m.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    assert_same(model, loaded)


@every_head
def test_a_checkpoint(name):
    dtype, _, _, kinds = HEADS[name]
    model, fresh = trained(name), trained(name, steps=0)
    fresh.optimizer.build(fresh.trainable_variables)
    state, there = ModelState(model), ModelState(fresh)
    facts, arrays = state.facts(), {name: read() for name, read in state.arrays()}
    was_int32 = [array for array in arrays if array.endswith(tuple(f" {kind}" for kind in kinds))]
    assert len(was_int32) >= len(kinds)
    for array in was_int32:
        arrays[array] = arrays[array].astype(np.int32)
    for description in facts["variables"]:
        if description[0] in kinds:
            assert description[1] == dtype
            description[1] = "int32"
    there.check(facts)
    there.restore(facts, arrays.__getitem__)
    assert_same(model, fresh)


@pytest.mark.thorough
@every_head
def test_int32_in_the_place_of_floats_is_refused(name):
    state = ModelState(trained(name, steps=1))
    facts = state.facts()
    next(found for found in facts["variables"] if found[1] == "float32")[1] = "int32"
    with pytest.raises(ValueError, match=r"checkpoint must be one of this model.*int32"):
        state.check(facts)
