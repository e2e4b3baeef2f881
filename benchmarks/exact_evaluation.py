# SPDX-License-Identifier: Apache-2.0
"""Exact evaluation: `streamed_logits` against matmul, bias, reduce_logsumexp and top_k.

The claim: with 1,000,000 classes, hidden width 128, batch 256 and k = 5, the custom op is at least
3 times as fast as the four TensorFlow ops and adds at most 64 MiB of memory. The op also returns
the logit and the rank of one label per example; `tensorflow` does not, `tensorflow_same` does.

    python benchmarks/exact_evaluation.py            # all rows, some minutes
    python benchmarks/exact_evaluation.py --quick    # small rows only, nothing is written
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import tensorflow as tf

from tfx_largeout.ops.exact.streamed_logits import streamed_logits

WIDTH = 128
Setting = tuple[int, int, int]  # classes, batch, k

FULL: list[Setting] = [
    *((num_classes, 256, k) for num_classes in (10_000, 100_000, 1_000_000) for k in (1, 5, 100)),
    (4_000_000, 256, 5),
    *((1_000_000, batch, 5) for batch in (1, 32)),
]
QUICK: list[Setting] = [(10_000, 256, 5), (100_000, 256, 5), (100_000, 256, 100), (100_000, 1, 5)]


def methods(setting: Setting) -> dict[str, Callable[[], Any]]:
    """Returns the sides; each call runs to the end."""
    num_classes, batch, k = setting
    generator = tf.random.Generator.from_seed(1)
    kernel = tf.Variable(generator.normal([num_classes, WIDTH]))
    bias = tf.Variable(generator.normal([num_classes]))
    hidden = generator.normal([batch, WIDTH])
    labels = generator.uniform([batch, 1], 0, num_classes, tf.int64)

    @tf.function
    def op() -> Any:
        return streamed_logits(hidden, kernel, bias, labels, k, implementation="op")

    @tf.function
    def tensorflow() -> Any:
        logits = tf.matmul(hidden, kernel, transpose_b=True) + bias
        return tf.reduce_logsumexp(logits, axis=1), *tf.math.top_k(logits, k)

    @tf.function
    def tensorflow_same() -> Any:
        logits = tf.matmul(hidden, kernel, transpose_b=True) + bias
        target_logits = tf.gather(logits, labels, batch_dims=1)
        ranks = tf.math.count_nonzero(logits > target_logits, axis=1)
        logsumexp = tf.reduce_logsumexp(logits, axis=1)
        return logsumexp, *tf.math.top_k(logits, k), target_logits, ranks

    return {
        "op": lambda: op().logsumexp.numpy(),
        "tensorflow": lambda: tensorflow()[0].numpy(),
        "tensorflow_same": lambda: tensorflow_same()[0].numpy(),
    }


def measure(setting: Setting, repeats: int) -> dict[str, Any]:
    """Returns one row."""
    num_classes, batch, k = setting
    words = [str(number) for number in setting]
    seconds = harness.alternate(methods(setting), repeats)
    peaks = {
        name: float(harness.in_child("--peak-of", name, *words)) for name in ("op", "tensorflow")
    }
    return {
        "classes": num_classes,
        "width": WIDTH,
        "batch": batch,
        "k": k,
        "op_ms": round(1e3 * seconds["op"], 2),
        "tensorflow_ms": round(1e3 * seconds["tensorflow"], 2),
        "tensorflow_same_ms": round(1e3 * seconds["tensorflow_same"], 2),
        "ratio": round(seconds["tensorflow"] / seconds["op"], 2),
        "ratio_same": round(seconds["tensorflow_same"] / seconds["op"], 2),
        "op_peak_mib": round(peaks["op"], 1),
        "tensorflow_peak_mib": round(peaks["tensorflow"], 1),
        **harness.machine(),
    }


def peak_of(name: str, setting: Setting) -> float:
    """Returns the MiB that the first call at this size adds, libraries and pools being loaded."""
    small = (1000, 2, 1)
    methods(small)[name]()
    return harness.peak_mib(methods(setting)[name])


def main() -> None:
    """Parses the command line and runs the settings, the small ones first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small rows, 3 repeats, no CSV")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--peak-of", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_of:
        name, *words = arguments.peak_of
        num_classes, batch, k = map(int, words)
        print(peak_of(name, (num_classes, batch, k)))
        return
    rows = []
    for setting in QUICK if arguments.quick else FULL:
        rows.append(measure(setting, 3 if arguments.quick else arguments.repeats))
        print({key: rows[-1][key] for key in list(rows[-1])[:11]}, flush=True)
    if not arguments.quick:
        harness.write_csv(harness.RESULTS / "exact_evaluation.csv", rows)


if __name__ == "__main__":
    main()
