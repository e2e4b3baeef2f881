# SPDX-License-Identifier: Apache-2.0
"""The memory to build a FactoredHead, and to train it, besides V itself.

The claim: no temporary of V's size, neither at initialization nor in a step. Each row is measured
in a separate process.

    python benchmarks/factored_memory.py            # C = 1,000,000; writes CSV rows
    python benchmarks/factored_memory.py --quick    # C = 100,000; nothing is written
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import tensorflow as tf

import tfx_largeout as tlo

WIDTH, BATCH = 128, 128
INITIALIZERS = ("glorot_uniform", "random_normal", "zeros")


def peak_of_build(classes: int, initializer: str) -> float:
    """Returns the MiB that `build` adds at its peak."""
    warm = tlo.heads.FactoredHead(1000, 0.1, kernel_initializer=initializer)
    warm.build((None, WIDTH))
    head = tlo.heads.FactoredHead(classes, 0.1, kernel_initializer=initializer)
    return harness.peak_mib(lambda: head.build((None, WIDTH)))


def peak_of_steps(classes: int) -> float:
    """Returns the MiB that the first three steps add at their peak, tracing included."""
    head = tlo.heads.FactoredHead(classes, 0.1)
    head.build((None, WIDTH))
    loss = tlo.losses.TaylorSoftmax()
    hidden = tf.random.normal([BATCH, WIDTH], seed=1)
    labels = tf.random.uniform([BATCH, 1], 0, classes, tf.int64, seed=1)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            value = loss(labels, head(hidden, training=True))
        gradient = tape.gradient(value, hidden)
        head.take_step()
        return gradient

    return harness.peak_mib(lambda: [step().numpy() for _ in range(3)])


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small head, no CSV")
    parser.add_argument("--child", help="an initializer, or steps")
    arguments = parser.parse_args()
    classes = 100_000 if arguments.quick else 1_000_000
    if arguments.child == "steps":
        print(peak_of_steps(classes))
        return
    if arguments.child:
        print(peak_of_build(classes, arguments.child))
        return
    size = classes * WIDTH * 4 / 2**20
    quick = ["--quick"] if arguments.quick else []
    rows = []
    for what in (*INITIALIZERS, "steps"):
        peak = float(harness.in_child("--child", what, *quick))
        of_v = 0 if what == "steps" else size
        rows.append(
            {
                "what": what if what == "steps" else f"build, {what}",
                "classes": classes,
                "width": WIDTH,
                "v_mib": round(size, 1),
                "added_mib": round(peak, 1),
                "beside_v_mib": round(peak - of_v, 1),
                **harness.machine(),
            }
        )
        print(rows[-1], flush=True)
    if not arguments.quick:
        harness.write_csv(harness.RESULTS / "factored_memory.csv", rows)


if __name__ == "__main__":
    main()
