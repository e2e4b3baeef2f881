# SPDX-License-Identifier: Apache-2.0
"""The memory for batches of uneven shapes, compared with only the largest.

The claim: for sequences of 1 to 200 in any order (rising, falling or random), the process uses at
most 1.2 times the memory for only the longest, plus 32 MiB, for every op that keeps memory between
calls. A row is an op, through the head or layer that calls it, and an order; each run is a separate
process.

    python benchmarks/uneven_shapes.py                      # writes results/uneven_shapes.csv
    python benchmarks/uneven_shapes.py --only shared fixed  # some; nothing is written

`fixed` traces a function per shape, as `tf.function` does with inputs of static shapes: an op per
shape. Linux only.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

WIDTH, BATCH, LONGEST, STEP = 256, 64, 200, 10
ORDERS = ("rising", "falling", "random")
Run = Callable[[list[int]], None]


def lengths(order: str) -> list[int]:
    """Returns the lengths of the sequences of each batch, the longest of them among them."""
    rising = [1, *range(STEP, LONGEST + 1, STEP)]
    if order == "largest":
        return [LONGEST] * 3
    if order == "falling":
        return rising[::-1]
    if order == "random":
        return list(np.random.default_rng(0).permutation(rising))
    return rising


def batches(order: list[int], classes: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Yields hidden activations and labels of sequences."""
    for number, length in enumerate(order):
        seed = [number, 0]
        x = tf.random.stateless_normal([BATCH, length, WIDTH], seed)
        yield x, tf.random.stateless_uniform([BATCH, length], seed, 0, classes, tf.int32)


def model_of(head: Any, loss: Any) -> keras.Model:
    """Returns the head as a model of sequences, compiled."""
    inputs = keras.Input([None, WIDTH])
    model = keras.Model(inputs, head(inputs))
    model.compile("adam", loss)
    return model


def data_of(order: list[int], classes: int) -> tf.data.Dataset:
    """Returns the batches as a data set of shapes that are not known."""
    signature = (
        tf.TensorSpec([BATCH, None, WIDTH], tf.float32),
        tf.TensorSpec([BATCH, None], tf.int32),
    )
    return tf.data.Dataset.from_generator(
        lambda: batches(order, classes), output_signature=signature
    )


def fit(make_head: Callable[[int], Any], make_loss: Callable[[], Any], classes: int) -> Run:
    """Returns a run of `fit`."""

    def run(order: list[int]) -> None:
        model = model_of(make_head(classes), make_loss())
        model.fit(data_of(order, classes), verbose=0)

    return run


def evaluate(classes: int) -> Run:
    """Returns a run of `evaluate`, with a metric that needs ranks."""

    def run(order: list[int]) -> None:
        inputs = keras.Input([None, WIDTH])
        head = sampled(tlo.samplers.LogUniform(10))(classes)
        model = keras.Model(inputs, head(inputs))
        model.compile("adam", tlo.losses.SampledSoftmax(), metrics=[tlo.metrics.PrecisionAtK(5)])
        model.evaluate(data_of(order, classes), verbose=0)

    return run


def embedding(classes: int) -> Run:
    """Returns a run of `fit` of a table that is looked up, with a head on the same table."""

    def run(order: list[int]) -> None:
        inputs = keras.Input([None], dtype="int32")
        table = tlo.layers.RowEmbedding(classes, WIDTH)
        head = tlo.heads.TiedSampledHead(table, tlo.samplers.LogUniform(1000))
        model = keras.Model(inputs, head(table(inputs)))
        model.compile(tlo.optimizers.RowAdam(1e-3), tlo.losses.SampledSoftmax())
        data = data_of(order, classes).map(lambda x, y: (y, y))
        model.fit(data, verbose=0)

    return run


def fixed(classes: int) -> Run:
    """Returns a run of training steps, each traced for its shape."""

    def run(order: list[int]) -> None:
        head = sampled(tlo.samplers.LogUniform(200, per_example=True))(classes)
        head.build((None, None, WIDTH))
        loss = tlo.losses.SampledSoftmax()

        @tf.function
        def step(x: tf.Tensor, y: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = loss(y, head(x, training=True))
            gradient = tape.gradient(value, x)
            head.take_step()
            return gradient

        chosen = [length for length in order if length % 40 == 0]  # a trace takes memory, too
        for x, y in batches(chosen, classes):
            step(x, y)

    return run


def top_k(make_index: Callable[[], Any], classes: int) -> Run:
    """Returns a run of searches for the best classes, for 1 to 200 examples."""

    def run(order: list[int]) -> None:
        head = sampled(tlo.samplers.LogUniform(10))(classes)
        head.build((None, WIDTH))
        index = make_index()
        index.rebuild(head.kernel, head.bias)
        search = tlo.TopK(head, 10, index=index)
        for length in order:
            search(tf.random.stateless_normal([length, WIDTH], [length, 0]))

    return run


def sampled(sampler: Any) -> Callable[[int], Any]:
    """Returns a function that makes a SampledHead."""
    return lambda classes: tlo.heads.SampledHead(classes, sampler, tlo.optimizers.RowAdam(1e-3))


def runs() -> dict[str, Run]:
    """Returns the measured functions, by name."""
    softmax, exact = tlo.losses.SampledSoftmax, tlo.losses.SoftmaxCrossentropy
    samplers, indexes = tlo.samplers, tlo.indexes
    return {
        "shared": fit(sampled(samplers.LogUniform(1000)), softmax, 20_000),
        "own": fit(sampled(samplers.LogUniform(200, per_example=True)), softmax, 20_000),
        "fixed": fixed(20_000),
        "embedding": embedding(20_000),
        "hash_index": fit(sampled(samplers.LSHEmbedding(500)), softmax, 20_000),
        "hash_index_own": fit(
            sampled(samplers.LSHEmbedding(50, per_example=True)), softmax, 20_000
        ),
        "multi_index": fit(sampled(samplers.MIDX(50, 32)), softmax, 20_000),
        "exact_softmax": fit(
            lambda c: tlo.heads.ExactSoftmaxHead(c, tlo.optimizers.RowAdam(1e-3)), exact, 1_000
        ),
        "factored": fit(lambda c: tlo.heads.FactoredHead(c, 0.01), tlo.losses.TaylorSoftmax, 5_000),
        "evaluate": evaluate(2_000),
        "row_bounds": top_k(indexes.RowBounds, 20_000),
        "inverted_file": top_k(indexes.InvertedFile, 20_000),
        "hash_search": top_k(indexes.HashIndex, 20_000),
    }


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="what is measured; no CSV")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        what, order = arguments.child
        runs()[what](lengths(order))
        print(harness.peak_of_process_mib())
        return
    rows = []
    for what in arguments.only or runs():
        alone = float(harness.in_child("--child", what, "largest"))
        for order in ORDERS:
            peak = float(harness.in_child("--child", what, order))
            rows.append(
                {
                    "what": what,
                    "order": order,
                    "largest_alone_mib": round(alone),
                    "uneven_mib": round(peak),
                    "ratio": round(peak / alone, 3),
                    "within": peak <= 1.2 * alone + 32,
                    **harness.machine(),
                }
            )
            print(what, order, rows[-1]["largest_alone_mib"], rows[-1]["uneven_mib"], flush=True)
    if not arguments.only:
        harness.write_csv(harness.RESULTS / "uneven_shapes.csv", rows)


if __name__ == "__main__":
    main()
