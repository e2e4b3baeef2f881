# SPDX-License-Identifier: Apache-2.0
"""DenseHead, the baseline of every comparison: is it TensorFlow at its best?

The claim: a gradient step of the full softmax that gathers the target rows of W is no slower than
TensorFlow's fused `sparse_softmax_cross_entropy_with_logits` (one label per example), and faster
than a step that gathers the target logits from the logits.

    python benchmarks/dense_head.py            # writes a CSV row
    python benchmarks/dense_head.py --quick    # a small one, nothing is written
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import tensorflow as tf

import tfx_largeout as tlo

BATCH, WIDTH = 512, 128


def methods(num_classes: int) -> dict[str, Callable[[], Any]]:
    """Returns gradient steps of the same loss; each call runs to the end."""
    head = tlo.heads.DenseHead(num_classes)
    hidden = tf.Variable(tf.random.normal([BATCH, WIDTH], seed=1))
    head(hidden)
    labels = tf.random.uniform([BATCH], 0, num_classes, tf.int64, seed=1)
    loss = tlo.losses.SoftmaxCrossentropy()

    def gather_rows() -> tf.Tensor:
        return loss(labels, head(hidden, training=True))

    def gather_logits() -> tf.Tensor:
        logits = head.logits(hidden)
        targets = tf.gather(logits, labels[:, tf.newaxis], batch_dims=1)[:, 0]
        return tf.reduce_mean(tf.reduce_logsumexp(logits, axis=-1) - targets)

    def fused() -> tf.Tensor:
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, head.logits(hidden))
        )

    def step(value: Callable[[], tf.Tensor]) -> Callable[[], Any]:
        variables = [hidden, head.kernel.value, head.bias.value]

        @tf.function
        def run() -> Any:
            with tf.GradientTape() as tape:
                result = value()
            # Dense, as an optimizer that touches every row needs them.
            return [tf.convert_to_tensor(g) for g in tape.gradient(result, variables)]

        return lambda: run()[0].numpy()

    return {f.__name__: step(f) for f in (gather_rows, gather_logits, fused)}


def main() -> None:
    """Parses the command line, measures, and writes the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10,000 classes, no CSV")
    arguments = parser.parse_args()
    num_classes = 10_000 if arguments.quick else 139_536
    seconds = harness.alternate(methods(num_classes), repeats=7)
    row = {
        "classes": num_classes,
        "width": WIDTH,
        "batch": BATCH,
        **{f"{name}_ms": round(1e3 * value, 1) for name, value in seconds.items()},
        "gather_logits_ratio": round(seconds["gather_logits"] / seconds["gather_rows"], 2),
        "fused_ratio": round(seconds["fused"] / seconds["gather_rows"], 2),
        **harness.machine(),
    }
    print(row)
    if not arguments.quick:
        harness.write_csv(harness.RESULTS / "dense_head.csv", [row])


if __name__ == "__main__":
    main()
