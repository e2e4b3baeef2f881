# SPDX-License-Identifier: Apache-2.0
"""The cost of the trunk's optimizer with a sampled head and sparse features: ms per step of `fit`.

On WordNet's hypernyms (27,463 features, nine per example; 139,536 classes) a `SparseDense` layer of
D ReLUs, then `SampledHead` with 1,000 log-uniform candidates per batch of 512 and `RowAdam`; the
model is compiled with Keras's Adam, which updates all rows of the kernel in each step, with
`FusedAdam`, which does the same in one pass, or with `RowRMSprop` or `RowAdam`, which update only
the rows of features that occur. Twenty steps of each, in turns. `candidates` are shared by the
batch, or 100 per example.

    python benchmarks/sparse_trunk.py

Writes results/sparse_trunk.csv, a row per setting: ms of wall time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras

import tfx_largeout as tlo
from tfx_largeout.datasets import load_wordnet, tf_idf

BATCH, STEPS, WIDTHS = 512, 20, (128, 512)
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(2e-3),
    "fused_adam": lambda: tlo.optimizers.FusedAdam(2e-3),
    "row_rmsprop": lambda: tlo.optimizers.RowRMSprop(2e-3),
    "row_adam": lambda: tlo.optimizers.RowAdam(2e-3),
}
CANDIDATES: dict[str, Callable[[], Any]] = {
    "1000 shared": lambda: tlo.samplers.LogUniform(1000),
    "100 own": lambda: tlo.samplers.LogUniform(100, per_example=True),
}


def model_of(examples: Any, width: int, candidates: str, optimizer: str) -> keras.Model:
    """Returns a model, compiled."""
    inputs = keras.Input([examples.num_features], sparse=True)
    hidden = tlo.layers.SparseDense(width, activation="relu")(inputs)
    sampler, rows = CANDIDATES[candidates](), tlo.optimizers.RowAdam(0.005)
    model = keras.Model(inputs, tlo.heads.SampledHead(examples.num_labels, sampler, rows)(hidden))
    model.compile(OPTIMIZERS[optimizer](), tlo.losses.ComplementarySum())
    return model


def main() -> None:
    """Measures and writes the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    examples, _ = tf_idf(*load_wordnet("hyper"))
    batches = examples.dataset(BATCH, shuffle=True, drop_remainder=True).take(STEPS).cache()
    rows = []
    for width in WIDTHS:
        models = {
            (candidates, optimizer): model_of(examples, width, candidates, optimizer)
            for candidates in CANDIDATES
            for optimizer in OPTIMIZERS
        }
        methods = {
            " ".join(key): lambda model=model: model.fit(batches, verbose=0)
            for key, model in models.items()
        }
        seconds = harness.alternate(methods, repeats)
        for (candidates, optimizer), value in zip(models, seconds.values(), strict=True):
            row = {
                "width": width,
                "candidates": candidates,
                "optimizer": optimizer,
                "ms_a_step": f"{1000 * value / STEPS:.1f}",
            }
            print(row, flush=True)
            rows.append({**row, **harness.machine()})
    harness.write_csv(harness.RESULTS / "sparse_trunk.csv", rows)


if __name__ == "__main__":
    main()
