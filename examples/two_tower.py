# SPDX-License-Identifier: Apache-2.0
"""A two-tower recommender: a network of what a user had, and a vector of each item.

The tower of users takes the items that a user had, as a sparse vector without their order, through
a layer and two cross layers of keras-rs. The tower of items is the rows of a `SampledHead`, whose
candidates are what other users of the batch had next, in `--queue` earlier batches too, or items by
popularity; the score is an inner product. Data, split and measures are as in next_item.py: each
item of training is learned from those before it, the best epoch is chosen on the item before the
last, and the last one is ranked once. `--export` also writes a SavedModel for servers.

    pip install keras-rs
    python examples/two_tower.py path/to/beauty
    tensorboard --logdir runs/two_tower
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import histories as data
import keras
import keras_rs
import numpy as np
import tensorflow as tf
from ranking import Ranking, say, train_and_rank

import tfx_largeout as tlo
from tfx_largeout.datasets import SparseExamples


def examples_of(
    before: list[np.ndarray], items: np.ndarray | None, num_classes: int
) -> SparseExamples:
    """Returns examples: the items that came before, a vector of length 1; and the next, if any."""
    known = [np.unique(row[row > 0]) for row in before]
    sizes = np.array([len(row) for row in known])
    labels = np.zeros(0, int) if items is None else items
    return SparseExamples(
        feature_splits=np.append(0, np.cumsum(sizes)),
        feature_ids=np.concatenate(known),
        feature_values=np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes),
        label_splits=np.arange(len(known) + 1) * (items is not None),
        label_ids=labels,
        num_features=num_classes,
        num_labels=num_classes,
    )


def to_train_on(histories: data.Histories, length: int) -> SparseExamples:
    """Returns an example for each item of training but a user's first."""
    places = [(items, i) for items in histories.train for i in range(1, len(items))]
    before = [items[max(i - length, 0) : i] for items, i in places]
    return examples_of(before, np.array([items[i] for items, i in places]), histories.num_classes)


def build_model(counts: np.ndarray, arguments: Any, steps: int) -> tuple[keras.Model, Ranking]:
    """Returns the model to train, and the measures without items that the user had."""
    known = keras.Input([len(counts)], sparse=True, name="known")
    first = tlo.layers.SparseDense(arguments.width, activation="relu")(known)
    first = keras.layers.Dropout(arguments.dropout)(first)
    crossed = first
    for _ in range(2):
        crossed = keras_rs.layers.FeatureCross()(first, crossed)
    number = min(arguments.candidates, len(counts) - 1)
    sampler = {
        "in-batch": lambda: tlo.samplers.InBatch(arguments.queue),
        "popularity": lambda: tlo.samplers.Unigram(counts, number, power=0.5, first_id=1),
    }[arguments.negatives]()
    rate = keras.optimizers.schedules.CosineDecay(arguments.learning_rate, steps, alpha=0.01)
    items = tlo.heads.SampledHead(
        len(counts),
        sampler,
        tlo.optimizers.RowAdam(2 * arguments.learning_rate),  # falls with the model's
        bias_initializer=tlo.initializers.LogFrequency(counts + 1),
        name="items",
    )
    model, loss = keras.Model(known, items(crossed)), tlo.losses.SampledSoftmax()
    model.compile(tlo.optimizers.FusedAdam(rate), loss=loss)
    had = keras.Input([None], dtype="int64", name="had")
    ranked = keras.Model([known, had], items(crossed, exclude=had))
    return model, Ranking(ranked, loss, counts)


def held_out(histories: data.Histories, part: str, batch_size: int = 512) -> tf.data.Dataset:
    """Returns batches of ((what a user had, its ids behind a 0), the item that came next)."""
    before, items, _ = histories.held_out(part)
    examples = examples_of(before, items, histories.num_classes)

    def with_ids(known: tf.SparseTensor, item: Any) -> Any:
        rows, ids = tf.unstack(known.indices, axis=1)
        had = tf.RaggedTensor.from_value_rowids(ids, rows, tf.shape(item, tf.int64)[0])
        return (known, tf.pad(had.to_tensor(), [[0, 0], [1, 0]])), item

    return examples.dataset(batch_size).map(with_ids)


def similar_items(model: keras.Model, item: int, k: int) -> np.ndarray:
    """Returns the k items whose vectors are nearest by cosine."""
    vectors = keras.utils.normalize(np.asarray(model.get_layer("items").kernel))
    order = np.argsort(-(vectors @ vectors[item]), kind="stable")
    return order[(order != item) & (order > 0)][:k]


def parse(command_line: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="a file, or a folder with one: see histories.py")
    parser.add_argument("--negatives", choices=("in-batch", "popularity"), default="in-batch")
    parser.add_argument(
        "--queue", type=int, default=4, help="earlier batches whose items are candidates"
    )
    parser.add_argument(
        "--candidates", type=int, default=1000, help="candidates by popularity per step"
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument(
        "--length", type=int, default=50, help="the last items of a history that are used"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--k", type=int, default=20, help="how many items the export finds")
    parser.add_argument("--output", type=Path, default=Path("runs/two_tower"))
    parser.add_argument("--export", type=Path, help="a new folder for a SavedModel")
    return parser.parse_args(command_line)


def main(command_line: list[str] | None = None) -> dict[str, Any]:
    """Trains and tests; returns what it writes to results.json."""
    arguments = parse(command_line)
    histories = data.load(arguments.data)
    keras.utils.set_random_seed(arguments.seed)
    train = to_train_on(histories, arguments.length)
    steps = arguments.epochs * -(-len(train) // arguments.batch_size)
    model, ranking = build_model(histories.counts, arguments, steps)
    results = train_and_rank(
        model,
        ranking,
        train.dataset(arguments.batch_size, shuffle=True),
        functools.partial(held_out, histories),
        f"two-tower, {arguments.negatives}",
        arguments.epochs,
        arguments,
    )
    if arguments.export is not None:
        tlo.export(model, arguments.export, k=arguments.k)
    best = int(histories.ids[1])
    print(f"like item {best} are items {histories.ids[similar_items(model, 1, 5)].tolist()}")
    (arguments.output / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    say(results)
    return results


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
