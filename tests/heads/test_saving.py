# SPDX-License-Identifier: Apache-2.0
"""Models of all heads load in a process that only imports the package."""

from __future__ import annotations

import json
import zipfile

import keras
import numpy as np
import pytest
from child import run_child

import tfx_largeout as tlo

CLASSES, WIDTH = 30, 4

LOAD = """
import sys
import keras, numpy as np, tfx_largeout
folder = sys.argv[1]
data = np.load(folder + "/data.npz")
for name in sys.argv[2:]:
    model = keras.saving.load_model(f"{folder}/{name}.keras")
    values = model.evaluate(data["x"], data["y"], verbose=0)
    np.testing.assert_allclose(values, data[name], rtol=1e-6)
    model.fit(data["x"], data["y"], verbose=0)
print("loaded", len(sys.argv) - 2)
"""


@pytest.mark.thorough
def test_compiled_models_load_in_a_new_process(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, WIDTH)).astype("float32")
    y = np.random.default_rng(1).integers(0, CLASSES, 20)
    counts = np.arange(CLASSES)
    heads = {
        "dense": tlo.heads.DenseHead(CLASSES, use_bias=False),
        "sampled_softmax": tlo.heads.TFSampledSoftmaxHead(
            CLASSES,
            num_sampled=5,
            num_true=2,
            sampler="fixed_unigram",
            sampler_options={"unigrams": counts + 1, "distortion": 0.75},
            remove_accidental_hits=False,
            seed=4,
        ),
        "factored": tlo.heads.FactoredHead(
            CLASSES,
            tlo.optimizers.RowSGD(
                keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9), weight_decay=0.01
            ),
            use_bias=True,
            bias_initializer="ones",
            stabilization="svd",
        ),
        "nce": tlo.heads.TFNCEHead(CLASSES, num_sampled=50, unique=False, sampler="uniform"),
    }
    losses = {"dense": tlo.losses.SoftmaxCrossentropy, "factored": tlo.losses.SphericalSoftmax}
    values = {}
    for name, head in heads.items():
        model = keras.Sequential([keras.Input((WIDTH,)), head])
        own = losses.get(name, tlo.losses.TFCandidateSamplingLoss)
        metrics = [tlo.metrics.PSPrecisionAtK(3, counts, 1000), tlo.metrics.NDCG(5)]
        model.compile("adam", own(reduction="sum"), metrics=metrics)
        model.fit(x, y, verbose=0)
        values[name] = model.evaluate(x, y, verbose=0)
        model.save(tmp_path / f"{name}.keras")
    np.savez(tmp_path / "data.npz", x=x, y=y, **values)
    done = run_child(tmp_path, "-c", LOAD, str(tmp_path), *heads)
    assert done.stdout.strip() == "loaded 4", done.stderr[-2000:]


def test_no_object_of_a_head_counts_as_shared(tmp_path):
    """Keras would number it by its place in memory, which is another one in each process."""
    head = tlo.heads.SampledHead(
        CLASSES, tlo.samplers.Uniform(5), tlo.optimizers.RowSGD(0.1), kernel_initializer="ones"
    )
    keras.Sequential([keras.Input([WIDTH]), head]).save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        model = json.loads(file.read("config.json"))
    assert shared_in(model["config"]["layers"][-1]["config"]) <= {"DTypePolicy"}  # Keras's own


def shared_in(config):
    """The classes of objects that are marked as shared in a configuration."""
    found = set()
    if isinstance(config, dict):
        found = {config["class_name"]} if "shared_object_id" in config else set()
        config = list(config.values())
    parts = config if isinstance(config, list) else []
    return found.union(*map(shared_in, parts))
