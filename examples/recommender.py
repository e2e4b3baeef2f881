# SPDX-License-Identifier: Apache-2.0
"""What next_item.py and two_tower.py share: options, models, training, and what is served."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import histories as data
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from ranking import Ranking, Validation

import tfx_largeout as tlo

CHOSEN_BY = "val_NDCG@10"


def number(kind: type, rule: str, holds: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Returns the type of an option: a number for which the rule holds."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not holds(value):
            raise argparse.ArgumentTypeError(f"must be {rule}; got {text}")
        return value

    parse.__name__ = kind.__name__
    return parse


POSITIVE = number(int, "at least 1", lambda n: n >= 1)
NOT_NEGATIVE = number(int, "at least 0", lambda n: n >= 0)
RATE = number(float, "above 0 and finite", lambda x: 0 < x < math.inf)


def options(description: str) -> argparse.ArgumentParser:
    """Returns a parser of the options that both commands have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="a file, or a folder with one: see histories.py")
    parser.add_argument("--queue", type=NOT_NEGATIVE, help="earlier batches of in-batch candidates")
    parser.add_argument("--width", type=POSITIVE, default=128)
    parser.add_argument(
        "--length", type=POSITIVE, default=50, help="the last items of a history that are used"
    )
    parser.add_argument(
        "--dropout", type=number(float, "in [0, 1)", lambda x: 0 <= x < 1), default=0.5
    )
    parser.add_argument("--learning-rate", type=RATE)
    seed = number(int, "in [0, 2^32)", lambda n: 0 <= n < 2**32)
    parser.add_argument("--seed", type=seed, default=1)
    parser.add_argument(
        "--user", type=int, help="user whose best items are printed; default: the first"
    )
    parser.add_argument("--names", type=Path, help="a file with a line per item: id and name")
    parser.add_argument(
        "--k", type=POSITIVE, help="how many items are printed, and served; default: 10, or all"
    )
    parser.add_argument("--output", type=Path, help="folder for the results")
    return parser


def fill_in(arguments: Any, option: str, uses: dict[str, tuple[Any, tuple[str, ...]]]) -> None:
    """Fills in defaults of options that only some choices of another option use.

    An option given for another choice is reported, and has no effect.

    Args:
        arguments: Of the command line; None where an option is not given.
        option: The name of the other option.
        uses: The default of each option, and the choices that use it.
    """
    choice = getattr(arguments, option)
    for name, (default, choices) in uses.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
        elif choice not in choices:
            used = " or ".join(f"--{option} {each}" for each in choices)
            print(f"--{name} has no effect on --{option} {choice}, but on {used}", file=sys.stderr)


def read(arguments: Any) -> tuple[data.Histories, list[str]]:
    """Returns the histories, and a text for each class; checks what would fail after training."""
    histories = data.load(arguments.data)
    names = {} if arguments.names is None else names_of(arguments.names)
    if arguments.user is None:
        arguments.user = int(histories.users[0])
    if arguments.user not in histories.users.tolist():
        raise SystemExit(f"--user must be one of the data; got {arguments.user}")
    items = histories.num_classes - 1
    arguments.k = min(10, items) if arguments.k is None else arguments.k
    if arguments.k > items:
        raise SystemExit(f"--k must be in [1, {items}], the items; got {arguments.k}")
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--output must be a folder that can be made; {error}") from error
    texts = ["no item", *(names.get(item, str(item)) for item in histories.ids[1:].tolist())]
    often = Counter(texts)
    return histories, [
        text if often[text] == 1 else f"{text} ({item})"
        for text, item in zip(texts, histories.ids.tolist(), strict=True)
    ]


def names_of(file: Path) -> dict[int, str]:
    """Returns the names of items: lines of an id, white space, and a name."""
    names: dict[int, str] = {}
    for number, line in data.lines_of(file):
        item, *name = line.split(maxsplit=1)
        if not name:
            raise SystemExit(f"{file}, line {number}: must be an item's id and name; got {line!r}")
        names[data.id_of(item, file, number)] = " ".join(name[0].split())
    return names


@keras.saving.register_keras_serializable(package="recommender")
class Recent(layers.Layer):
    """Returns the last items of each history, behind a 0: `[B, n]` to `[B, min(n, length) + 1]`.

    A 0 is no item, wherever it stands; there, zeros follow the items.
    """

    def __init__(self, length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length

    def call(self, history: Any) -> Any:
        items_first = tf.argsort(ops.cast(history == 0, "int32"), stable=True)
        history = tf.gather(history, items_first, batch_dims=1)
        sizes = ops.sum(ops.cast(history > 0, "int32"), axis=1, keepdims=True)
        width = ops.minimum(ops.shape(history)[1], self.length)
        places = ops.maximum(sizes - self.length, 0) + ops.arange(width)
        return ops.pad(tf.gather(history, places, batch_dims=1), [[0, 0], [1, 0]])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "length": self.length}


class Recommender:
    """The layers of a recommender, and the models that are made of them.

    A subclass makes `head` and `trained`, writes `state`, and then calls `finish`.

    Attributes:
        head: Its classes are the items; class 0 is none.
        trained: The compiled model, which is trained.
        ranking: Measures the model of what is next after a history of classes.
        server: The same for a history of ids of items; unknown ids raise an error.
    """

    head: Any
    trained: keras.Model

    def state(self, recent: Any) -> Any:
        """Returns h after a history, which is what `Recent` returns."""
        raise NotImplementedError

    def finish(self, histories: data.Histories, length: int, loss: Any) -> None:
        """Makes `ranking` and `server`, which read the last `length` items of histories."""
        recent = Recent(length)

        def after(history: Any) -> Any:
            """Returns the logits of what is next; 0 and what was had are not to be found."""
            had = ops.pad(history, [[0, 0], [1, 0]])
            return self.head(self.state(recent(history)), exclude=had)

        history, ids = (
            keras.Input((None,), dtype="int64", name=name) for name in ("classes", "history")
        )
        self.ranking = Ranking(keras.Model(history, after(history)), loss, histories.counts)
        lookup = layers.IntegerLookup(vocabulary=histories.ids[1:], mask_token=0, num_oov_indices=0)
        self.server = keras.Model(ids, after(lookup(ids)))


def batches(rows: list[Any], batch_size: int, seed: int, mix: float = 2) -> tf.data.Dataset:
    """Returns batches of rows (items, what follows), in another order each epoch.

    Lengths in a batch are alike: rows are sorted by length plus a random number below `mix`.
    """
    rng = np.random.default_rng(seed)
    sizes = np.array([len(items) for items, _ in rows])

    def epoch() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = np.argsort(sizes + mix * rng.random(len(sizes)))
        for start in rng.permutation(range(0, len(order), batch_size)):
            chosen = [rows[i] for i in order[start : start + batch_size]]
            items, following = zip(*chosen, strict=True)
            yield data.padded(items), data.padded(following, padding=-1)

    signature = tf.TensorSpec([None, None], tf.int64)
    dataset = tf.data.Dataset.from_generator(epoch, output_signature=(signature, signature))
    number = -(-len(rows) // batch_size)
    return dataset.apply(tf.data.experimental.assert_cardinality(number)).prefetch(4)


def held_out(histories: data.Histories, part: str, batch_size: int = 512) -> tf.data.Dataset:
    """Returns batches of (what a user had before, the item that came next)."""
    before, items, _ = histories.held_out(part)
    parts = list(data.by_length(before, batch_size))

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for users in parts:
            yield data.padded([before[u] for u in users]), items[users]

    signature = tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int64)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(parts)))


def train_and_serve(
    recommender: Recommender,
    train: tf.data.Dataset,
    histories: data.Histories,
    texts: list[str],
    head: str,
    patience: int,
    arguments: Any,
) -> dict[str, Any]:
    """Trains, takes the best epoch by validation alone, measures both parts once, and serves.

    Args:
        recommender: The models.
        train: Batches to train on, shuffled.
        histories: Their `validation` and `test` are measured.
        texts: What each class is called.
        head: How results call it.
        patience: Epochs without a better one before it stops.
        arguments: Of the command line.

    Returns:
        What it writes to results.json.
    """
    found = arguments.output / "results.json"
    found.unlink(missing_ok=True)  # of an earlier run
    start = time.perf_counter()
    history = recommender.trained.fit(
        train,
        epochs=arguments.epochs,
        shuffle=False,  # the data set does it
        callbacks=[
            Validation(recommender.ranking, held_out(histories, "validation")),
            keras.callbacks.TensorBoard(arguments.output),
            keras.callbacks.EarlyStopping(
                CHOSEN_BY, mode="max", patience=patience, restore_best_weights=True
            ),
        ],
        verbose=2,
    ).history
    results: dict[str, Any] = {
        "head": head,
        "seed": arguments.seed,
        "epoch": int(np.argmax(history[CHOSEN_BY])) + 1,
        "seconds": round(time.perf_counter() - start, 1),
    }
    for part in ("validation", "test"):
        results[part] = recommender.ranking(held_out(histories, part))
    found.write_text(json.dumps(results, indent=2) + "\n")
    recommender.server.save(arguments.output / "model.keras")
    folder = new_version(arguments.output / "served")
    tlo.export(recommender.server, folder, k=arguments.k, names=texts)
    print(f"user {arguments.user}:", ", ".join(ask(folder, histories.whole(arguments.user))))
    for part in ("validation", "test"):
        print(f"{part}:", *(f"{name} {value:.4f}" for name, value in results[part].items()))
    return results


def new_version(folder: Path) -> Path:
    """Returns the next numbered folder; servers take the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    return folder / str(max(numbers, default=0) + 1)


def ask(folder: Path, history: np.ndarray) -> list[str]:
    """Returns the names of the best items for a history, by what was exported."""
    served = tf.saved_model.load(str(folder)).signatures["serving_default"]
    answer = served(inputs=tf.constant(history[np.newaxis]))
    return [name.decode() for name in answer["names"][0].numpy() if name]
