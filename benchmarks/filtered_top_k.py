# SPDX-License-Identifier: Apache-2.0
"""The exact search without excluded classes against the plain one: `TopK` with and without.

The claim: with 200 ids per example, the search takes at most 1.2 times as long. `best_first`
excludes each example's best classes, which need most lookups; `random` excludes random ones.

    python benchmarks/filtered_top_k.py            # all rows, about a minute
    python benchmarks/filtered_top_k.py --quick    # a small row only, nothing is written
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

K, EXCLUDED = 10, 200
FULL = [(1_000_000, *each) for each in ((64, 64), (64, 256), (128, 64), (128, 256), (256, 64))]
QUICK = [(100_000, 64, 64)]


def measure(classes: int, width: int, batch: int, repeats: int) -> dict[str, Any]:
    """Returns one row."""
    generator = tf.random.Generator.from_seed(1)
    head = tlo.heads.DenseHead(classes, kernel_initializer="random_normal")
    head.build((None, width))
    hidden = generator.normal([batch, width])
    layer = tlo.TopK(head, K)
    best = tlo.TopK(head, EXCLUDED)(hidden)[1]
    any_of_them = generator.uniform([batch, EXCLUDED], 0, classes, tf.int64)
    few = tlo.TopK(head, K, allow=np.arange(0, classes, 100))
    run, run_few = tf.function(layer), tf.function(few)
    seconds = harness.alternate(
        {
            "plain": lambda: run(hidden)[1].numpy(),
            "random": lambda: run(hidden, any_of_them)[1].numpy(),
            "best_first": lambda: run(hidden, best)[1].numpy(),
            "allow_one_percent": lambda: run_few(hidden)[1].numpy(),
        },
        repeats,
    )
    return {
        "classes": classes,
        "width": width,
        "batch": batch,
        "k": K,
        "excluded": EXCLUDED,
        **{f"{name}_ms": round(1e3 * time, 1) for name, time in seconds.items()},
        **{
            f"{name}_ratio": round(seconds[name] / seconds["plain"], 3)
            for name in ("random", "best_first", "allow_one_percent")
        },
        **harness.machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows = []
    for setting in QUICK if quick else FULL:
        rows.append(measure(*setting, repeats=5 if quick else 1_300 // setting[2]))
        print(rows[-1], flush=True)
    if not quick:
        harness.write_csv(harness.RESULTS / "filtered_top_k.csv", rows)


if __name__ == "__main__":
    main()
