# SPDX-License-Identifier: Apache-2.0
"""A two-tower recommender: a network of what a user had, and a vector of each item.

    pip install keras-rs
    python examples/two_tower.py path/to/beauty
    tensorboard --logdir runs/two_tower

The tower of users takes the items that a user had, as a sparse vector without their order, through
a layer and two cross layers of keras-rs. The tower of items is the rows of a `SampledHead`, whose
candidates are what other users of the batch had next, in `--queue` earlier batches too, or items by
popularity; the score is an inner product. Each item of training is learned from those before it.
Data, split, measures and what is served are as in next_item.py.
"""

from __future__ import annotations

from typing import Any

import histories as data
import keras
import keras_rs
import numpy as np
import recommender
import tensorflow as tf
from keras import layers

import tfx_largeout as tlo


@keras.saving.register_keras_serializable(package="two_tower")
class Known(layers.Layer):
    """Returns a sparse vector of length 1 of each row's items, `[B, n]` to `[B, C]`; 0 is none."""

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes

    def call(self, items: Any) -> Any:
        items = tf.sort(items, axis=1)
        is_new = items > tf.pad(items[:, :-1], [[0, 0], [1, 0]])
        rows = tf.where(is_new)[:, 0]
        sizes = tf.reduce_sum(tf.cast(is_new, self.compute_dtype), axis=1)
        return tf.SparseTensor(
            tf.stack([rows, tf.boolean_mask(items, is_new)], axis=1),
            tf.gather(tf.math.rsqrt(sizes), rows),
            [tf.shape(items, tf.int64)[0], self.num_classes],
        )

    def compute_output_spec(self, items: Any) -> Any:
        shape = items.shape[0], self.num_classes
        return keras.KerasTensor(shape, self.compute_dtype, sparse=True)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes}


class TwoTower(recommender.Recommender):
    """The layers of both towers, and the models that are made of them."""

    def __init__(self, histories: data.Histories, arguments: Any, steps: int) -> None:
        counts = histories.counts
        number = min(arguments.candidates, len(counts) - 1)
        sampler = {
            "in-batch": lambda: tlo.samplers.InBatch(arguments.queue),
            "popularity": lambda: tlo.samplers.Unigram(counts, number, power=0.5, first_id=1),
        }[arguments.negatives]()
        self.known, self.dropout = Known(len(counts)), layers.Dropout(arguments.dropout)
        self.first = tlo.layers.SparseDense(arguments.width, activation="relu")
        self.crosses = [keras_rs.layers.FeatureCross() for _ in range(2)]
        self.head = tlo.heads.SampledHead(
            len(counts),
            sampler,
            tlo.optimizers.RowAdam(2 * arguments.learning_rate),  # falls with the model's
            bias_initializer=tlo.initializers.LogFrequency(counts + 1),
            name="items",
        )
        items, loss = keras.Input((None,), dtype="int64"), tlo.losses.SampledSoftmax()
        self.trained = keras.Model(items, self.head(self.state(items)))
        rate = keras.optimizers.schedules.CosineDecay(arguments.learning_rate, steps, alpha=0.01)
        self.trained.compile(tlo.optimizers.FusedAdam(rate), loss=loss)
        self.finish(histories, arguments.length, loss)

    def state(self, recent: Any) -> Any:
        first = self.dropout(self.first(self.known(recent)))
        crossed = first
        for cross in self.crosses:
            crossed = cross(first, crossed)
        return crossed


def to_train_on(histories: data.Histories, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns each item of training but a user's first, behind the items before it."""
    return [
        (items[max(i - length, 0) : i], items[i : i + 1])
        for items in histories.train
        for i in range(1, len(items))
    ]


def parse(command_line: list[str] | None) -> Any:
    parser = recommender.options(__doc__)
    parser.add_argument("--negatives", choices=("in-batch", "popularity"), default="in-batch")
    parser.add_argument(
        "--candidates",
        type=recommender.POSITIVE,
        help="candidates by popularity per step; default: 1000",
    )
    parser.add_argument("--epochs", type=recommender.POSITIVE, default=10)
    parser.add_argument("--batch-size", type=recommender.POSITIVE, default=256)
    parser.set_defaults(learning_rate=2e-3, output="runs/two_tower")
    arguments = parser.parse_args(command_line)
    uses = {"candidates": (1000, ("popularity",)), "queue": (4, ("in-batch",))}
    recommender.fill_in(arguments, "negatives", uses)
    return arguments


def main(command_line: list[str] | None = None) -> dict[str, Any]:
    """Trains, tests, saves and serves; returns what it writes to results.json."""
    arguments = parse(command_line)
    histories, texts = recommender.read(arguments)
    rows = to_train_on(histories, arguments.length)
    if not rows:
        raise SystemExit(f"{arguments.data}: a user must have 4 items at least; got none that has")
    keras.utils.set_random_seed(arguments.seed)
    train = recommender.batches(rows, arguments.batch_size, arguments.seed, mix=1e9)  # any lengths
    towers = TwoTower(histories, arguments, arguments.epochs * len(train))
    name = f"two-tower, {arguments.negatives}"
    return recommender.train_and_serve(
        towers, train, histories, texts, name, arguments.epochs, arguments
    )


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
