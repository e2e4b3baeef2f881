# SPDX-License-Identifier: Apache-2.0
"""A training step of ExactSoftmaxHead against DenseHead, the full softmax.

DenseHead is trained by Keras's Adam, as users would, and by `FusedAdam`, which takes the same
steps. The claims, against Keras's Adam, with a softmax as in training (`zipf`): at C = 139,536, D =
128, B = 512 a step with a selected gradient takes at most a third of the time (bfloat16 products: 1
/ 4.5), and with the gradient of all classes and bfloat16 products at most 1 / 1.5. At C = 670,091,
B = 1024 the selected gradient takes at most 1 / 3.5 (bfloat16: 1 / 5), and a process holds at most
1 / 3 of the memory.

    python benchmarks/exact_softmax.py           # all rows, a quarter of an hour; 24 GB of memory
    python benchmarks/exact_softmax.py --quick   # a small one, nothing is written
    python benchmarks/exact_softmax.py --smoothing   # what label smoothing adds to a step

Methods take turns in one process, each with separate weights. A step is a step of `fit`, with a
hidden layer of D. `softmax` is the kind of softmax: `uniform`, as before the first step, where the
kept classes are spread over W; or `zipf`, where p_c falls as 1 / rank, as soon as a model has
learned the class frequencies. Memory is measured in a separate process per method. Run it with
nothing else on the machine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

RATE = 1e-3
SMOOTHING = 0.1


class Setting(NamedTuple):
    """Sizes of layer and batch, and the form of the softmax."""

    classes: int
    width: int
    batch: int
    softmax: str


SETTINGS = [
    Setting(classes, 128, batch, softmax)
    for classes, batch in ((139_536, 512), (670_091, 1024))
    for softmax in ("zipf", "uniform")
]
SMALL = Setting(5_000, 32, 64, "zipf")
# The full softmax: the optimizers that its methods are named after.
FULL = {
    "full_softmax": lambda: keras.optimizers.Adam(RATE),
    "full_softmax_fused": lambda: tlo.optimizers.FusedAdam(RATE),
}


def make_heads(classes: int) -> dict[str, Callable[[], tlo.heads.Head]]:
    """Returns a function that makes a head, for each method."""

    def exact(**options: Any) -> Callable[[], tlo.heads.Head]:
        return lambda: tlo.heads.ExactSoftmaxHead(
            classes, tlo.optimizers.RowAdam(RATE), seed=1, **options
        )

    return {
        **{name: lambda: tlo.heads.DenseHead(classes) for name in FULL},
        "selected": exact(),
        "selected_bfloat16": exact(products="bfloat16"),
        "all": exact(backward="all"),
        "all_bfloat16": exact(backward="all", products="bfloat16"),
    }


def make_step(
    name: str, head: tlo.heads.Head, setting: Setting, smoothing: float = 0.0
) -> Callable[[], Any]:
    """Returns a method's step of `fit` on one batch."""
    rng = np.random.default_rng(1)
    classes, width, batch, softmax = setting
    hidden = tf.random.stateless_normal([batch, width], [1, 2])
    if not head.built:
        head.build((None, width))
    log_p = -np.log1p(np.arange(classes)) if softmax == "zipf" else np.zeros(classes)
    head.bias.assign(log_p.astype(np.float32))
    p = np.exp(log_p) / np.exp(log_p).sum()
    labels = rng.choice(classes, batch, p=p)
    loss = tlo.losses.SoftmaxCrossentropy(label_smoothing=smoothing)
    return harness.fit_step(head, loss, FULL.get(name, FULL["full_softmax"])(), hidden, labels)


def measure(setting: Setting, repeats: int) -> dict[str, Any]:
    """Returns the row of a setting."""
    words = [str(value) for value in setting]
    makers = make_heads(setting.classes)
    peaks = {name: float(harness.in_child("--peak-of", name, *words)) for name in makers}
    steps = {name: make_step(name, make(), setting) for name, make in makers.items()}
    seconds = harness.alternate(steps, repeats)
    full = seconds["full_softmax"]
    return {
        **setting._asdict(),
        **{f"{name}_ms": round(1e3 * value, 1) for name, value in seconds.items()},
        **{
            f"{name}_speedup": round(full / value, 2)
            for name, value in seconds.items()
            if name != "full_softmax"
        },
        **{f"{name}_peak_mib": round(value) for name, value in peaks.items()},
        **harness.machine(),
    }


def measure_smoothing(setting: Setting, repeats: int) -> dict[str, Any]:
    """Returns the row of a setting: a step of a head with label smoothing, and one without."""
    makers = {name: make for name, make in make_heads(setting.classes).items() if name not in FULL}
    steps = {}
    for name, make in makers.items():
        head = make()
        steps[name] = make_step(name, head, setting)
        steps[f"{name}_smoothed"] = make_step(name, head, setting, SMOOTHING)
    seconds = harness.alternate(steps, repeats)
    return {
        **setting._asdict(),
        **{f"{name}_ms": round(1e3 * value, 1) for name, value in seconds.items()},
        **{
            f"{name}_smoothed_ratio": round(seconds[f"{name}_smoothed"] / seconds[name], 3)
            for name in makers
        },
        **harness.machine(),
    }


def peak_of(name: str, setting: Setting) -> float:
    """Returns the most memory that a process of some steps holds, in MiB."""
    step = make_step(name, make_heads(setting.classes)[name](), setting)
    for _ in range(3):
        step()
    return harness.peak_of_process_mib()


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5,000 classes, no CSV")
    parser.add_argument("--repeats", type=int, default=9, help="turns of each method")
    parser.add_argument("--smoothing", action="store_true", help="label smoothing, and without")
    parser.add_argument("--peak-of", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_of:
        name, *sizes, softmax = arguments.peak_of
        print(peak_of(name, Setting(*map(int, sizes), softmax)))
        return
    rows = []
    measured = measure_smoothing if arguments.smoothing else measure
    for setting in [SMALL] if arguments.quick else SETTINGS:
        rows.append(measured(setting, arguments.repeats))
        print(rows[-1], flush=True)
    if not arguments.quick:
        name = "exact_softmax_smoothing.csv" if arguments.smoothing else "exact_softmax.csv"
        harness.write_csv(harness.RESULTS / name, rows)


if __name__ == "__main__":
    main()
