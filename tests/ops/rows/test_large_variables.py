# SPDX-License-Identifier: Apache-2.0
"""Large variables are saved and loaded in blocks of rows, equal to Keras's whole ones."""

from __future__ import annotations

import zipfile

import h5py
import keras
import numpy as np
import pytest

import tfx_largeout as tlo
from tfx_largeout.ops.rows import large_variables

C, D = 301, 6


def model_of(kind):
    optimizer = tlo.optimizers.RowAdam(0.1)
    if kind == "factored":
        head, loss = tlo.heads.FactoredHead(C, 0.1), tlo.losses.TaylorSoftmax()
    elif kind == "dense":
        head, loss = tlo.heads.DenseHead(C), tlo.losses.SoftmaxCrossentropy()
    else:
        sampler, loss = tlo.samplers.Uniform(20), tlo.losses.ComplementarySum()
        head = tlo.heads.SampledHead(C, sampler, optimizer, seed=1, dtype=kind)
    model = keras.Sequential([keras.Input([D]), keras.layers.Dense(D), head])
    model.compile(tlo.optimizers.RowAdagrad(0.1), loss)
    rng = np.random.default_rng(0)
    model.fit(rng.standard_normal((9, D)), rng.integers(C, size=9), verbose=0)
    return model


def saved_in(file, folder):
    with zipfile.ZipFile(file) as archive:
        archive.extract("model.weights.h5", folder)
    found = {}
    with h5py.File(folder / "model.weights.h5") as weights:
        weights.visititems(
            lambda name, each: (
                found.update({name: (each.dtype.str, dict(each.attrs), each[()].tobytes())})
                if isinstance(each, h5py.Dataset)
                else None
            )
        )
    return found


@pytest.mark.all_cases
@pytest.mark.filterwarnings("ignore:.*bfloat16.*")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "factored", "dense"])
def test_a_file_is_the_same_whether_variables_are_large(tmp_path, monkeypatch, kind):
    model = model_of(kind)
    model.save(tmp_path / "small.keras")
    monkeypatch.setattr(large_variables, "_LARGE", 0)
    monkeypatch.setattr(large_variables, "_BLOCK", 100)
    model.save(tmp_path / "large.keras")
    small, large = (saved_in(tmp_path / f"{name}.keras", tmp_path) for name in ("small", "large"))
    assert small == large
    again = keras.saving.load_model(tmp_path / "small.keras")
    variables = [*model.variables, *model.optimizer.variables]
    loaded = [*again.variables, *again.optimizer.variables]
    for one, other in zip(variables, loaded, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), one.path)
    head = model.layers[-1]
    if hasattr(head, "optimizer"):
        pairs = zip(head.optimizer.variables, again.layers[-1].optimizer.variables, strict=True)
        for one, other in pairs:
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other), one.path)


def test_a_store_that_is_no_file_gets_arrays(monkeypatch):
    monkeypatch.setattr(large_variables, "_LARGE", 0)
    head = model_of("float32").layers[-1]
    store = {}
    head.save_own_variables(store)
    before = store[str([v.name for v in head.saved_weights].index("kernel"))].copy()
    head.kernel.assign(np.zeros([C, D]))
    head.load_own_variables(store)
    np.testing.assert_array_equal(head.kernel.numpy(), before)
