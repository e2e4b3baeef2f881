# SPDX-License-Identifier: Apache-2.0
"""The cost of automatic settings compared with an epoch of training: shipped WordNet data.

A head is trained on WordNet's hypernyms (139,536 classes, batches of 512, D = 128) for an epoch,
with shared log-uniform candidates and with candidates per example. Then, in turns with two more
epochs, `choose_num_sampled` chooses S on 256 training examples, and `choose_hash_index` K and L,
with 256 queries. Their choices are measured on 256 unseen test examples.

Seconds are wall time, and CPU time over all threads, which is more reliable on a busy machine.
`epochs_at_2_percent` is the number of epochs for which one such choice takes 2% of the CPU time.

    python benchmarks/auto_settings.py            # two minutes on a quiet machine
    python benchmarks/auto_settings.py --quick    # one epoch, nothing is written
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout import datasets
from tfx_largeout.indexes import HashIndex, SimHash, choose_hash_index

BATCH, WIDTH, PROBED, BEST = 512, 128, 256, 10
SAMPLERS = {
    "shared": tlo.samplers.LogUniform(1000),
    "own": tlo.samplers.LogUniform(100, per_example=True),
}
TOLERANCES, TARGETS = (0.3, 0.15), ({"recall": 0.5}, {"recall": 0.9}, {"num_found": 1000})


class Examples(NamedTuple):
    """Training batches, and examples for the choice and for its test."""

    num_features: int
    num_classes: int
    epoch: tf.data.Dataset
    seen: tuple[Any, Any]
    held_out: tuple[Any, Any]


class Timed(NamedTuple):
    """The result of a call, its wall time and its CPU time."""

    result: Any
    seconds: float
    cpu_seconds: float


def examples() -> Examples:
    """Returns WordNet's hypernyms."""
    train, test = datasets.load_wordnet("hyper")
    epoch = train.dataset(BATCH, shuffle=True, seed=0, drop_remainder=True)
    seen = next(iter(train.dataset(PROBED, shuffle=True, seed=1)))
    held_out = next(iter(test.dataset(PROBED)))
    return Examples(train.num_features, train.num_labels, epoch, seen, held_out)


def model_of(data: Examples, sampler: tlo.samplers.Sampler) -> keras.Model:
    """Returns the model of benchmarks/index_recall.py."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input([data.num_features], sparse=True)
    trunk = tlo.layers.SparseDense(WIDTH, activation="relu")
    head = tlo.heads.SampledHead(data.num_classes, sampler, tlo.optimizers.RowAdam(0.005), seed=0)
    model = keras.Model(inputs, head(trunk(inputs)))
    model.compile(keras.optimizers.Adam(2e-3), loss=tlo.losses.ComplementarySum())
    return model


def timed(call: Callable[[], Any]) -> Timed:
    """Calls and takes the time."""
    start, of_processor = time.perf_counter(), time.process_time()
    result = call()
    return Timed(result, time.perf_counter() - start, time.process_time() - of_processor)


def num_sampled_choices(model: keras.Model, data: Examples) -> list[dict[str, Any]]:
    """Returns columns of each choice of S."""
    rows = []
    for tolerance in TOLERANCES:
        choice = timed(lambda: tlo.choose_num_sampled(model, *data.seen, tolerance))  # noqa: B023
        num_sampled, found = choice.result
        _, held_out = tlo.choose_num_sampled(model, *data.held_out, 1e9, sizes=[num_sampled])
        rows.append(
            {
                "choice": "num_sampled",
                "target": f"tolerance={tolerance:g}",
                "chosen": f"S={num_sampled}",
                "met": f"{found['error']:.3f}",
                "held_out": f"{held_out['error']:.3f}",
                **_seconds(choice),
            }
        )
    return rows


def index_choices(model: keras.Model, data: Examples) -> list[dict[str, Any]]:
    """Returns columns of each choice of K and L."""
    trunk, head = keras.Model(model.input, model.layers[-1].input), model.layers[-1]
    seen, held_out = trunk(data.seen[0]), trunk(data.held_out[0])
    like, rows = HashIndex(SimHash(), similarity="inner_product"), []
    for target in TARGETS:
        choice = timed(lambda: choose_hash_index(like, head.kernel, head.bias, seen, **target))  # noqa: B023
        index, found = choice.result
        index.rebuild(head.kernel, head.bias)
        queries = held_out[:, tf.newaxis]
        ids = index.candidates(queries, found["num_found"], tf.constant([1, 2]), True).numpy()
        best = head.top_k(held_out, BEST).ids.numpy()
        recall = np.mean([np.isin(b, i).mean() for b, i in zip(best, ids, strict=True)])
        rows.append(
            {
                "choice": "hash_index",
                "target": ", ".join(f"{name}={value:g}" for name, value in target.items()),
                "chosen": "K={hashes_per_table}, L={num_tables}, S={num_found}".format(**found),
                "met": f"{found['recall']:.3f}",
                "held_out": f"{recall:.3f}",
                **_seconds(choice),
            }
        )
    return rows


def rows_of(sharing: str, data: Examples, epochs: int) -> list[dict[str, Any]]:
    """Returns a row a choice."""
    model = model_of(data, SAMPLERS[sharing])

    def epoch() -> None:
        model.fit(data.epoch, epochs=1, shuffle=False, verbose=0)

    epoch()  # traces, too
    rows, trained = num_sampled_choices(model, data), [timed(epoch) for _ in range(epochs - 1)]
    if sharing == "shared":
        rows += index_choices(model, data)
    trained.append(timed(epoch))
    seconds = statistics.median(each.seconds for each in trained)
    cpu_seconds = statistics.median(each.cpu_seconds for each in trained)
    return [
        {
            "candidates": sharing,
            **row,
            "epoch_seconds": f"{seconds:.2f}",
            "epoch_cpu_seconds": f"{cpu_seconds:.2f}",
            "epochs_at_2_percent": f"{float(row['cpu_seconds']) / (0.02 * cpu_seconds):.1f}",
            **harness.machine(),
        }
        for row in rows
    ]


def _seconds(choice: Timed) -> dict[str, str]:
    return {"seconds": f"{choice.seconds:.2f}", "cpu_seconds": f"{choice.cpu_seconds:.2f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one epoch; nothing is written")
    quick = parser.parse_args().quick
    data, rows = examples(), []
    for sharing in SAMPLERS:
        rows += rows_of(sharing, data, 1 if quick else 2)
        print(*rows, sep="\n")
        if not quick:
            harness.write_csv(harness.RESULTS / "auto_settings.csv", rows)


if __name__ == "__main__":
    main()
