# SPDX-License-Identifier: Apache-2.0
"""Whether a change of the source made steps slower: two trees, side by side in one run.

    python benchmarks/two_trees.py --old ../before --new .

Each tree has its library built in place. In turns, child processes of both time a step of the
factored head, a step of the sampled head and the exact best classes, inside of a `tf.function`;
results/two_trees.csv has the medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SETTINGS = {  # C, D and B
    "factored_step": (200_000, 300, 128),
    "sampled_step": (1_000_000, 64, 128),
    "exact_top_k": (200_000, 128, 64),
}


def make_step(name: str) -> Callable[[], Any]:
    """Returns the timed functions, made with the package that the process imports."""
    import tensorflow as tf

    import tfx_largeout as tlo

    classes, width, batch = SETTINGS[name]
    hidden = tf.random.stateless_normal((batch, width), (1, 2))
    labels = tf.random.stateless_uniform((batch,), (3, 4), 0, classes, tf.int64)
    if name == "exact_top_k":
        best = tlo.TopK(tlo.heads.DenseHead(classes), 10)
        return tf.function(lambda: best(hidden))
    if name == "factored_step":
        head, loss = tlo.heads.FactoredHead(classes, 0.01), tlo.losses.ZLoss()
    else:
        sampler, optimizer = tlo.samplers.LogUniform(1000), tlo.optimizers.RowAdam(0.001)
        head = tlo.heads.SampledHead(classes, sampler, optimizer, seed=1)
        loss = tlo.losses.ComplementarySum()
    head.build((None, width))

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            value = loss(labels, head(hidden, training=True))
        gradient = tape.gradient(value, hidden)
        head.take_step()
        return gradient

    return tf.function(step)


def measure(name: str, seconds: float) -> float:
    """Returns the median of the milliseconds of a step."""
    step = make_step(name)
    for _ in range(20):
        step()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def measure_in(tree: Path, name: str, seconds: float) -> float:
    """Returns the results of a process that imports the package from a tree."""
    command = [sys.executable, __file__, "--child", name, "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    if Path(found["package"]).parent.parent != tree.resolve():
        raise RuntimeError(f"the package must be that of {tree}; got {found['package']}")
    return float(found["milliseconds"])


def main() -> None:
    """Writes a row for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, default=Path("../before"))
    parser.add_argument("--new", type=Path, default=Path("."))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--child", choices=SETTINGS)
    options = parser.parse_args()
    if options.child:
        import tfx_largeout

        value = measure(options.child, options.seconds)
        print(json.dumps({"milliseconds": value, "package": tfx_largeout.__file__}))
        return
    from harness import RESULTS, machine, write_csv

    rows = []
    for name, (classes, width, batch) in SETTINGS.items():
        pairs = [
            [measure_in(tree, name, options.seconds) for tree in (options.old, options.new)]
            for _ in range(options.pairs)
        ]
        old, new = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(after / before for before, after in pairs)
        row = {"step": name, "classes": classes, "width": width, "batch": batch}
        row |= {"old_ms": round(old, 3), "new_ms": round(new, 3), "ratio": round(ratio, 3)}
        print(row, flush=True)
        rows.append(row | {"pairs": options.pairs} | machine())
    write_csv(RESULTS / "two_trees.csv", rows)


if __name__ == "__main__":
    main()
