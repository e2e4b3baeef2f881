# SPDX-License-Identifier: Apache-2.0
"""HierarchicalSoftmaxHead: how does a training step grow with the number of classes?

The claim: with sqrt(C) for two levels, with log(C) for a Huffman tree, and with C for the full
softmax. A step is loss, gradient and plain SGD of the head alone. Labels are drawn from a Zipf
distribution whose counts the trees know, or evenly, and the trees know no counts. `exact_loss` is
the loss of a batch in evaluation.

    python benchmarks/hierarchical_softmax.py            # writes a CSV row a number of classes
    python benchmarks/hierarchical_softmax.py --quick    # a small one, nothing is written
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

BATCH, WIDTH, RATE = 256, 128, 0.1
CLASSES = (10_000, 100_000, 1_000_000, 10_000_000)
MOST_DENSE = 1_000_000
BATCHES = 8


def dense_step(num_classes: int) -> Callable[..., Any]:
    """Returns a step of the full softmax with SGD."""
    head = tlo.heads.DenseHead(num_classes)
    head.build((None, WIDTH))
    loss, weights = tlo.losses.SoftmaxCrossentropy(), [head.kernel.value, head.bias.value]

    @tf.function
    def run(hidden: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            value = loss(labels, head(hidden, training=True))
        *gradients, hidden_gradient = tape.gradient(value, [*weights, hidden])
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(RATE * tf.convert_to_tensor(gradient))
        return hidden_gradient

    return run


def tree_head(num_classes: int, tree: str, counts: np.ndarray | None) -> Any:
    """Returns a head with weights."""
    head = tlo.heads.HierarchicalSoftmaxHead(
        num_classes, tlo.optimizers.RowSGD(RATE), tree=tree, counts=counts
    )
    head.build((None, WIDTH))
    return head


def tree_step(head: Any) -> Callable[..., Any]:
    """Returns a step of a hierarchical softmax with SGD."""
    loss = tlo.losses.NegativeLogLikelihood()

    @tf.function
    def run(hidden: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            value = loss(labels, head(hidden, training=True))
        gradient = tape.gradient(value, hidden)
        head.take_step()
        return gradient

    return run


def exact_loss(head: Any) -> Callable[..., Any]:
    """Returns the loss of a batch in evaluation."""
    loss = tlo.losses.NegativeLogLikelihood()
    return tf.function(lambda hidden, labels: loss(labels, head(hidden, training=False)))


def measure(num_classes: int, labels: str) -> dict[str, Any]:
    """Returns the row of a number of classes; labels are "zipf" or "even"."""
    rng = np.random.default_rng(0)
    counts = 1 / np.arange(1, num_classes + 1) if labels == "zipf" else None
    shares = None if counts is None else counts / counts.sum()
    batches = [
        (tf.random.normal([BATCH, WIDTH]), tf.constant(rng.choice(num_classes, BATCH, p=shares)))
        for _ in range(BATCHES)
    ]

    def over_batches(step: Callable[..., Any], number: int) -> Callable[[], Any]:
        return lambda: [step(*batch).numpy() for batch in batches[:number]]

    numbers, methods = {}, {}
    for tree in ("two_level", "huffman"):
        head = tree_head(num_classes, tree, counts)
        numbers |= {tree: BATCHES, f"{tree}_exact_loss": BATCHES}
        methods[tree] = tree_step(head)
        methods[f"{tree}_exact_loss"] = exact_loss(head)
    if num_classes <= MOST_DENSE:
        numbers["dense"] = 1
        methods["dense"] = dense_step(num_classes)
    seconds = harness.alternate(
        {name: over_batches(step, numbers[name]) for name, step in methods.items()}, repeats=3
    )
    ms = {name: 1e3 * value / numbers[name] for name, value in seconds.items()}
    return {
        "classes": num_classes,
        "labels": labels,
        "width": WIDTH,
        "batch": BATCH,
        **{
            f"{name}_ms": round(ms[name], 2) if name in ms else ""
            for name in ("dense", *(name for name in numbers if name != "dense"))
        },
        **{
            f"{tree}_ratio": round(ms["dense"] / ms[tree], 1) if "dense" in ms else ""
            for tree in ("two_level", "huffman")
        },
    }


def needed_mib(num_classes: int) -> float:
    """Returns the memory of a row: both trees, or the full softmax."""
    heads = 2 * num_classes * WIDTH * 4
    dense = num_classes * (3 * WIDTH + 4 * BATCH) * 4 if num_classes <= MOST_DENSE else 0
    return 1000 + 1.2 * (heads + dense) / 2**20


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10,000 classes, no CSV")
    parser.add_argument("--child", nargs=2, metavar=("CLASSES", "LABELS"), help="for itself")
    arguments = parser.parse_args()
    if arguments.child:
        num_classes, labels = arguments.child
        print(json.dumps(measure(int(num_classes), labels)))
        return
    rows = []
    for num_classes in CLASSES[:1] if arguments.quick else CLASSES:
        if harness.available_mib() < needed_mib(num_classes):
            print(f"{num_classes:,} classes left out: they take {needed_mib(num_classes):,.0f} MiB")
            continue
        for labels in ("zipf", "even"):
            row = json.loads(harness.in_child("--child", str(num_classes), labels))
            rows.append({**row, **harness.machine()})
            print(rows[-1])
    if not arguments.quick:
        harness.write_csv(harness.RESULTS / "hierarchical_softmax.csv", rows)


if __name__ == "__main__":
    main()
