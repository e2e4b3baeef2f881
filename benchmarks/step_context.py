# SPDX-License-Identifier: Apache-2.0
"""The cost of a head's step that waits for the optimizer's.

In `fit` with an optimizer that neither scales nor accumulates, the gradient takes the head's step,
with one op. Otherwise the op runs twice, for the gradient and for the step: `deferred_ms` is such a
step of the same model, with a fixed loss scale of 1; `accumulated_ms` is one batch of the four of a
step.

    python benchmarks/step_context.py            # writes the CSV
    python benchmarks/step_context.py --quick    # small ones, nothing is written
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

WIDTH, BATCH, STEPS = 128, 512, 40
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "fused": lambda: keras.optimizers.Adam(1e-3),
    "deferred": lambda: keras.optimizers.Adam(1e-3, loss_scale_factor=1.0),
    "accumulated": lambda: keras.optimizers.Adam(1e-3, gradient_accumulation_steps=4),
}


def _sampled(classes: int, sampler: Any) -> Any:
    return tlo.heads.SampledHead(classes, sampler, tlo.optimizers.RowAdam(1e-3), seed=1)


HEADS: dict[str, tuple[Callable[[int], Any], Callable[[], Any]]] = {
    "sampled, 1,000 shared": (
        lambda classes: _sampled(classes, tlo.samplers.LogUniform(1000)),
        tlo.losses.SampledSoftmax,
    ),
    "sampled, 100 own": (
        lambda classes: _sampled(classes, tlo.samplers.LogUniform(100, per_example=True)),
        tlo.losses.SampledSoftmax,
    ),
    "exact, selected": (
        lambda classes: tlo.heads.ExactSoftmaxHead(classes, tlo.optimizers.RowAdam(1e-3)),
        tlo.losses.SoftmaxCrossentropy,
    ),
    "exact, all": (
        lambda classes: tlo.heads.ExactSoftmaxHead(
            classes, tlo.optimizers.RowAdam(1e-3), backward="all"
        ),
        tlo.losses.SoftmaxCrossentropy,
    ),
    "factored": (lambda classes: tlo.heads.FactoredHead(classes, 1e-4), tlo.losses.ZLoss),
    "two levels": (
        lambda classes: tlo.heads.HierarchicalSoftmaxHead(classes, tlo.optimizers.RowAdam(1e-3)),
        tlo.losses.NegativeLogLikelihood,
    ),
}


def epochs(name: str, classes: int, steps: int) -> dict[str, Callable[[], Any]]:
    """Returns an epoch of `fit` of the same model with each optimizer."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps * BATCH, WIDTH)).astype("float32")
    y = (classes ** rng.random(len(x)) - 1).astype("int64")  # frequent classes first
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).cache()
    make_head, make_loss = HEADS[name]

    def epoch(optimizer: Any) -> Callable[[], Any]:
        keras.utils.set_random_seed(1)
        trunk = keras.layers.Dense(WIDTH, "relu")
        model = keras.Sequential([keras.Input((WIDTH,)), trunk, make_head(classes)])
        model.compile(optimizer, make_loss())
        return lambda: model.fit(data, verbose=0)

    return {kind: epoch(make()) for kind, make in OPTIMIZERS.items()}


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2,000 classes, no CSV")
    quick = parser.parse_args().quick
    rows = []
    for name in HEADS:
        classes = 2_000 if quick else 20_000 if name.startswith("exact") else 139_536
        steps = 4 if quick or name.startswith("exact") else STEPS
        seconds = harness.alternate(epochs(name, classes, steps), repeats=3 if quick else 9)
        row = {
            "head": name,
            "classes": classes,
            "width": WIDTH,
            "batch": BATCH,
            **{f"{kind}_ms": round(1e3 * value / steps, 2) for kind, value in seconds.items()},
            "deferred_ratio": round(seconds["deferred"] / seconds["fused"], 2),
            "accumulated_ratio": round(seconds["accumulated"] / seconds["fused"], 2),
            **harness.machine(),
        }
        print(row)
        rows.append(row)
    if not quick:
        harness.write_csv(harness.RESULTS / "step_context.csv", rows)


if __name__ == "__main__":
    main()
