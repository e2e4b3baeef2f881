# SPDX-License-Identifier: Apache-2.0
"""A two-tower recommender: a network of what a user did, and a vector of each item.

The tower of users takes what is known of a user, as a sparse vector, through a layer and two cross
layers of keras-rs. The tower of items is the rows of a `SampledHead`, which trains them on
candidates by popularity; the score is an inner product. Retrieval is `TopK`: exact, in one pass
over the items. `--export` also writes a SavedModel for servers.

    pip install keras-rs
    python examples/two_tower.py path/to/gowalla
    tensorboard --logdir runs/two_tower

The data is a folder in the format of the extreme classification repository: for each user, the
items to find as labels, and what is known as features. Without one: the shipped WordNet, where
words of a definition stand for what a user did.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import keras
import keras_rs
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.datasets import SparseExamples, find_split, load_wordnet, read_xc, tf_idf


def load(folder: str | None) -> tuple[SparseExamples, ...]:
    """Returns users to train on, those with items to find, and all users to test on."""
    if folder is None:
        train, test = load_wordnet("hyper")
    else:
        train, test = (read_xc(str(find_split(folder, split))) for split in ("train", "test"))
    return tf_idf(with_items(train), test)


def with_items(users: SparseExamples) -> SparseExamples:
    return users.take(np.flatnonzero(np.diff(users.label_splits)))


def build_model(users: SparseExamples, arguments: Any) -> keras.Model:
    known = keras.Input([users.num_features], sparse=True, name="known")
    first = tlo.layers.SparseDense(arguments.width, activation="relu")(known)
    first = keras.layers.Dropout(arguments.dropout)(first)
    crossed = first
    for _ in range(2):
        crossed = keras_rs.layers.FeatureCross()(first, crossed)
    counts = users.label_counts() + 1
    rate = keras.optimizers.schedules.CosineDecay(
        arguments.learning_rate, arguments.epochs * (len(users) // arguments.batch_size), alpha=0.01
    )
    items = tlo.heads.SampledHead(
        users.num_labels,
        tlo.samplers.Unigram(
            counts, min(arguments.candidates, users.num_labels), power=0.5, per_example=True
        ),
        tlo.optimizers.RowAdam(2 * arguments.learning_rate),  # falls with the model's
        bias_initializer=tlo.initializers.LogFrequency(counts),
        name="items",
    )
    model = keras.Model(known, items(crossed))
    model.compile(
        tlo.optimizers.FusedAdam(rate),
        loss=tlo.losses.ComplementarySum(),
        metrics=[tlo.metrics.RecallAtK(20), tlo.metrics.NDCG(20)],
    )
    return model


def similar_items(model: keras.Model, item: int, k: int) -> np.ndarray:
    """Returns the k items whose vectors are nearest by cosine."""
    vectors = keras.utils.normalize(np.asarray(model.get_layer("items").kernel))
    order = np.argsort(-(vectors @ vectors[item]), kind="stable")
    return order[order != item][:k]


def parse(command_line: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="default: the shipped WordNet")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--candidates", type=int, default=100, help="of each user")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--users", type=int, help="only the first ones, of each part")
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("runs/two_tower"))
    parser.add_argument("--export", type=Path, help="a new folder for a SavedModel")
    return parser.parse_args(command_line)


def main(command_line: list[str] | None = None) -> dict[str, list[float]]:
    """Trains, writes the best items of each test user, and returns the history."""
    arguments = parse(command_line)
    keras.utils.set_random_seed(1)
    train, test = (
        users.take(np.arange(len(users))[: arguments.users]) for users in load(arguments.folder)
    )
    if len(train) < arguments.batch_size:
        raise SystemExit(
            f"--batch-size must be at most {len(train)}, the users to train on; "
            f"got {arguments.batch_size}"
        )
    model = build_model(train, arguments)
    history = model.fit(
        train.dataset(arguments.batch_size, shuffle=True, drop_remainder=True),
        validation_data=with_items(test).dataset(arguments.batch_size),
        epochs=arguments.epochs,
        shuffle=False,  # the data set does it
        callbacks=[keras.callbacks.TensorBoard(arguments.output)],
        verbose=2,
    ).history
    retrieval = tlo.top_k_model(model, arguments.k)
    scores, ids = retrieval.predict(test.dataset(arguments.batch_size), verbose=0)
    np.savez(arguments.output / "retrieved.npz", scores=scores, ids=ids)
    print(f"like item 0 are items {similar_items(model, 0, 5).tolist()}")
    if arguments.export is not None:
        tlo.export(model, arguments.export, k=arguments.k)
    return history


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
