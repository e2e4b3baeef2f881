# SPDX-License-Identifier: Apache-2.0
"""Milliseconds per step of `fit` and batch of `evaluate` on a GPU: a million classes, each head.

    python benchmarks/gpu/steps.py                    # all rows, each in a separate process
    python benchmarks/gpu/steps.py exact --kernels 0  # one row
    python benchmarks/gpu/steps.py exact --quick      # 10,000 classes, nothing is written
    python benchmarks/gpu/steps.py exact_bfloat16 --shape 16384 2048 248320   # as language models

`fit` as a user calls it, on arrays in the host's memory: 10 steps to warm up, then 30; `evaluate`
of 30 batches minus one of 4. Rows go to `benchmarks/results/gpu_steps.csv`. On a GPU machine see
also `same_numbers.py` (first), and `torch_softmax.py`, the same step in PyTorch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
sys.path.insert(0, str(Path(__file__).parents[1]))

SHAPE = 1024, 256, 1_000_000  # batch, width, classes
SAMPLED, STEPS = 8192, 30
ROWS = [
    *[
        (name, kernels)
        for name in ("sampled", "sampled_own", "exact", "factored")
        for kernels in "01"
    ],
    *[("exact_tf32", "1"), ("exact_bfloat16", "1"), ("keras_dense", "0"), ("tf_sampled", "0")],
]


def makers(num_classes: int) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Returns, for each name, a function that makes the output layer and its loss."""
    import keras

    from tfx_largeout import heads, losses, optimizers, samplers

    def exact(**options: Any) -> tuple[Any, Any]:
        head = heads.ExactSoftmaxHead(num_classes, optimizers.RowAdam(1e-3), **options)
        return head, losses.SoftmaxCrossentropy()

    def sampled(sampler: Any) -> tuple[Any, Any]:
        head = heads.SampledHead(num_classes, sampler, optimizers.RowAdam(1e-3))
        return head, losses.ComplementarySum()

    few = min(SAMPLED, num_classes // 2)
    return {
        "exact": exact,
        "exact_tf32": exact,
        "exact_bfloat16": lambda: exact(products="bfloat16"),
        "sampled": lambda: sampled(samplers.LogUniform(few)),
        "sampled_own": lambda: sampled(samplers.LogUniform(few // 40, per_example=True)),
        "factored": lambda: (heads.FactoredHead(num_classes, 1e-3), losses.ZLoss()),
        "tf_sampled": lambda: (
            heads.TFSampledSoftmaxHead(num_classes, few),
            losses.TFCandidateSamplingLoss(),
        ),
        "keras_dense": lambda: (
            keras.layers.Dense(num_classes),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ),
    }


def measure(name: str, size: int, width: int, num_classes: int) -> dict[str, Any]:
    """Returns the row of a head, timed in this process."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfx_largeout as tlo

    random = np.random.default_rng(0)
    features = random.standard_normal((size * STEPS, width)).astype("float32")
    labels = ((random.zipf(1.3, size * STEPS) - 1) % num_classes).astype("int32")
    if name == "exact_tf32":
        tlo.set_product_precision("tf32")
    head, loss = makers(num_classes)[name]()
    model = keras.Sequential([keras.Input([width]), keras.layers.Dense(width), head])
    sgd = name == "tf_sampled"  # Adam would step all rows
    optimizer = keras.optimizers.SGD(0.1) if sgd else keras.optimizers.Adam(1e-3)
    model.compile(optimizer, loss=loss, jit_compile=False)

    def fit(steps: int) -> float:
        some = slice(size * steps)
        start = time.perf_counter()
        model.fit(features[some], labels[some], batch_size=size, verbose=0, shuffle=False)
        return time.perf_counter() - start

    def evaluate(batches: int) -> float:
        some = slice(size * batches)
        start = time.perf_counter()
        model.evaluate(features[some], labels[some], batch_size=size, verbose=0)
        return time.perf_counter() - start

    warm, seconds = fit(10), fit(STEPS)
    gpus = tf.config.list_physical_devices("GPU")
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**30 if gpus else None
    evaluation = None
    if name != "keras_dense":
        metrics = [tlo.metrics.ExactLoss(), tlo.metrics.PrecisionAtK(1)]
        model.compile(optimizer, loss=loss, metrics=metrics)
        few, many = [evaluate(batches) for batches in (4, 4, STEPS)][1:]  # the first one traces
        evaluation = round((many - few) / (STEPS - 4) * 1e3, 1)
    card = tf.config.experimental.get_device_details(gpus[0])["device_name"] if gpus else "none"
    return {
        "head": name,
        "kernels": os.environ.get("TFX_LARGEOUT_GPU_KERNELS", "1"),
        "classes": num_classes,
        "width": width,
        "batch": size,
        "step_ms": round(seconds / STEPS * 1e3, 2),
        "evaluation_ms": evaluation,
        "peak_gib": peak and round(peak, 2),
        "first_ten_steps_s": round(warm, 1),
        "card": card,
        "tensorflow": tf.__version__,
        "commit": _commit(),
    }


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("head", nargs="?", help="one row; default: all")
    parser.add_argument("--kernels", default="1", choices=["0", "1"], help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="10,000 classes, no CSV")
    parser.add_argument(
        "--shape",
        nargs=3,
        type=int,
        default=SHAPE,
        metavar=("B", "D", "C"),
        help="default: %(default)s",
    )
    arguments = parser.parse_args()
    size, width, num_classes = arguments.shape
    options = ["--shape", *map(str, arguments.shape), *["--quick"] * arguments.quick]
    if arguments.head is None:
        for head, kernels in ROWS:
            child = [sys.executable, __file__, head, "--kernels", kernels, *options]
            subprocess.run(child)  # a failing row prints its error, and the others continue
        return
    os.environ["TFX_LARGEOUT_GPU_KERNELS"] = arguments.kernels
    row = measure(arguments.head, size, width, 10_000 if arguments.quick else num_classes)
    print(row, flush=True)
    if not arguments.quick:
        import harness

        harness.append_row(harness.RESULTS / "gpu_steps.csv", row)


if __name__ == "__main__":
    main()
