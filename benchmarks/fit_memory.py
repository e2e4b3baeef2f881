# SPDX-License-Identifier: Apache-2.0
"""Memory that remains of models trained one after the other in one process.

Each model is built, trained for two steps, and dropped, followed by `keras.utils.clear_session` and
a garbage collection; then the resident memory of the process is measured. `dense` is
keras.layers.Dense with Adam, `sampled` is `SampledHead` with `RowAdam`. With `forget` the functions
that `tf.custom_gradient` has stored in TensorFlow's registry are removed after each model.

    python benchmarks/fit_memory.py

Writes results/fit_memory.csv, a row per model. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np

import tfx_largeout as tlo
from tfx_largeout.tensorflow_internals import custom_gradients_forgotten

CLASSES, WIDTH, BATCH, MODELS = 500_000, 64, 64, 4
KINDS = ("dense", "sampled")


def model_of(kind: str) -> keras.Model:
    """Returns a model of one layer, compiled."""
    inputs = keras.Input([WIDTH])
    if kind == "dense":
        model = keras.Model(inputs, keras.layers.Dense(CLASSES)(inputs))
        loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:
        sampler, optimizer = tlo.samplers.LogUniform(100), tlo.optimizers.RowAdam(0.01)
        model = keras.Model(inputs, tlo.heads.SampledHead(CLASSES, sampler, optimizer)(inputs))
        loss = tlo.losses.ComplementarySum()
    model.compile("adam", loss)
    return model


def fit(kind: str) -> None:
    """Trains a model for two steps."""
    x = np.random.default_rng(0).normal(size=[2 * BATCH, WIDTH]).astype("float32")
    model_of(kind).fit(x, np.arange(2 * BATCH), BATCH, verbose=0)


def measure(kind: str, forget: bool) -> list[int]:
    """Returns the resident memory after each model."""
    found = []
    for _ in range(MODELS):
        with custom_gradients_forgotten() if forget else contextlib.nullcontext():
            fit(kind)
        keras.utils.clear_session()
        gc.collect()
        found.append(round(harness.resident_mib()))
    return found


def main() -> None:
    """Measures each kind with and without `forget`, each in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        kind, forget = arguments.measure
        print(json.dumps(measure(kind, forget == "forget")))
        return
    rows = []
    for kind in KINDS:
        for forget in ("keep", "forget"):
            found = json.loads(harness.in_child("--measure", kind, forget))
            print(kind, forget, found, flush=True)
            rows += [
                {
                    "head": kind,
                    "gradients": forget,
                    "model": number + 1,
                    "resident_mib": mib,
                    **harness.machine(),
                }
                for number, mib in enumerate(found)
            ]
    harness.write_csv(harness.RESULTS / "fit_memory.csv", rows)


if __name__ == "__main__":
    main()
