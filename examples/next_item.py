# SPDX-License-Identifier: Apache-2.0
"""A recommender of the next item: a causal Transformer (as SASRec) over what a user did.

    python examples/next_item.py path/to/beauty
    python examples/next_item.py path/to/beauty --head midx --candidates 100
    tensorboard --logdir runs/next_item

The data is a file, or a folder with one, in a format of `histories.py`. W of the head is the table
of the item embedding. `--head` chooses the loss, and the candidates of a training step:

- `exact`: the softmax over all items (`TiedExactSoftmaxHead`); the default while actions times
  items are 10^10 at most, about 25 minutes on one core, and `uniform` for more;
- `uniform`, `log-uniform`, `popularity`: candidates of the batch from these distributions;
- `in-batch`: what comes next elsewhere in the batch, and in `--queue` earlier ones;
- `midx`: candidates of each position from a softmax over coded rows of W;
- `gbce`: uniform candidates of each position, and gSASRec's loss;
- `tensorflow`: `tf.nn.sampled_softmax_loss` as it is, with its own log-uniform candidates.

Each epoch is validated on the item before the last of each user, over the whole catalogue without
what the user had before; the best epoch's weights are kept. Then, once, the last item is ranked.
The model is saved, and exported for servers: `history` is padded with 0 behind, of any length
(the last `--length` items count); an empty one gets what users begin with.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import histories as data
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from ranking import Ranking, say, train_and_rank

import tfx_largeout as tlo

OPTIMIZERS = {"adam": tlo.optimizers.FusedAdam, "row-adam": tlo.optimizers.RowAdam}
MOST_PAIRS = 10**10  # of actions and items, that an exact epoch scores
HEADS = ("exact", "uniform", "log-uniform", "popularity", "in-batch", "midx", "gbce", "tensorflow")


@keras.saving.register_keras_serializable(package="next_item")
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


@keras.saving.register_keras_serializable(package="next_item")
class Latest(layers.Layer):
    """Returns what stands at the last item of each sequence: `[B, n, D]` to `[B, D]`."""

    def call(self, x: Any, items: Any) -> Any:
        return tf.gather(x, ops.sum(ops.cast(items > 0, "int32"), axis=1), batch_dims=1)


@keras.saving.register_keras_serializable(package="next_item")
class Positions(layers.Layer):
    """Scales embeddings by the root of their width, and adds a vector of each position."""

    def __init__(self, length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.scale = input_shape[-1] ** 0.5
        self.table = self.add_weight(
            shape=(self.length, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.1),
            name="table",
        )

    def call(self, x: Any) -> Any:
        return self.scale * x + ops.cast(self.table, x.dtype)[: ops.shape(x)[1]]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "length": self.length}


@keras.saving.register_keras_serializable(package="next_item")
class Block(layers.Layer):
    """Causal attention and a feed-forward network, each added to its input."""

    def __init__(self, width: int, num_heads: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arguments = {"width": width, "num_heads": num_heads, "dropout": dropout}
        self.attention = layers.MultiHeadAttention(
            num_heads, width // num_heads, dropout=0.4 * dropout
        )
        self.first, self.second = (layers.LayerNormalization() for _ in range(2))
        self.wide, self.narrow = layers.Dense(4 * width, "gelu"), layers.Dense(width)
        self.dropout = layers.Dropout(dropout)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.attention.build(input_shape, input_shape)
        for layer in (self.first, self.second, self.wide):
            layer.build(input_shape)
        self.narrow.build((*input_shape[:-1], self.wide.units))

    def call(self, x: Any, training: bool | None = None) -> Any:
        normal = self.first(x)
        found = self.attention(normal, normal, use_causal_mask=True, training=training)
        x += self.dropout(found, training=training)
        found = self.narrow(self.wide(self.second(x)))
        return x + self.dropout(found, training=training)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.arguments}


@keras.saving.register_keras_serializable(package="next_item")
class TiedTFSampledSoftmaxHead(tlo.heads.TFSampledSoftmaxHead):
    """`TFSampledSoftmaxHead` whose W is the table of the item embedding."""

    def __init__(self, embedding: Any, num_sampled: int, **kwargs: Any) -> None:
        kwargs.pop("num_classes", None)  # of a configuration
        super().__init__(embedding.input_dim, num_sampled, **kwargs)
        self.embedding = embedding

    def add_kernel(self) -> None:
        self.kernel = self.embedding.embeddings

    def get_config(self) -> dict[str, Any]:
        embedding = keras.saving.serialize_keras_object(self.embedding)
        return {**super().get_config(), "embedding": embedding}


class Recommender:
    """The layers, and the models that are made of them.

    Attributes:
        trained: The compiled model, of sequences of classes: what is next at each place.
        ranking: Measures the model of what is next after a history of classes.
        server: The same for a history of ids of items; unknown ids raise an error.
    """

    def __init__(self, histories: data.Histories, arguments: Any, steps: int) -> None:
        counts, width, length = histories.counts, arguments.width, arguments.length
        embedding = tlo.layers.RowEmbedding(
            len(counts),
            width,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1),
            name="items",
        )
        self.trunk = [embedding, Positions(length + 1), layers.Dropout(arguments.dropout)]
        for _ in range(arguments.blocks):
            self.trunk.append(Block(width, arguments.attention_heads, arguments.dropout))
        self.trunk.append(layers.LayerNormalization())
        self.head, loss = build_head(embedding, counts, arguments)
        self.recent, self.latest = Recent(length), Latest()

        sequence, history, ids = (
            keras.Input((None,), dtype="int64", name=name)
            for name in ("sequence", "classes", "history")
        )
        self.trained = keras.Model(sequence, self.head(self.hidden(sequence)))
        rate = keras.optimizers.schedules.CosineDecay(arguments.learning_rate, steps, alpha=0.01)
        self.trained.compile(OPTIMIZERS[arguments.optimizer](rate, beta_2=0.98), loss=loss)
        self.ranking = Ranking(keras.Model(history, self.after(history)), loss, counts)
        lookup = layers.IntegerLookup(vocabulary=histories.ids[1:], mask_token=0, num_oov_indices=0)
        self.server = keras.Model(ids, self.after(lookup(ids)))

    def hidden(self, sequence: Any) -> Any:
        """Returns h at each place."""
        x = sequence
        for layer in self.trunk:
            x = layer(x)
        return x

    def after(self, history: Any) -> Any:
        """Returns the logits of what is next; 0 and what was had are not to be found."""
        recent = self.recent(history)
        had = ops.pad(history, [[0, 0], [1, 0]])
        return self.head(self.latest(self.hidden(recent), recent), exclude=had)


def build_head(embedding: Any, counts: np.ndarray, arguments: Any) -> tuple[Any, Any]:
    """Returns the head and its loss. Class 0 stands for no item: it is no label."""
    of_bias = {"use_bias": arguments.bias}
    if arguments.bias:
        of_bias["bias_initializer"] = tlo.initializers.LogFrequency(counts + 1)
    if arguments.head == "exact":
        head = tlo.heads.TiedExactSoftmaxHead(embedding, **of_bias)
        return head, tlo.losses.SoftmaxCrossentropy()
    number = min(arguments.candidates, len(counts) - 1)
    if arguments.head == "tensorflow":
        head = TiedTFSampledSoftmaxHead(embedding, number, **of_bias)
        return head, tlo.losses.TFCandidateSamplingLoss()
    sampler = {
        "uniform": lambda: tlo.samplers.Uniform(number, first_id=1),
        "log-uniform": lambda: tlo.samplers.LogUniform(number, first_id=1),
        "popularity": lambda: tlo.samplers.Unigram(counts, number, first_id=1),
        "in-batch": lambda: tlo.samplers.InBatch(arguments.queue),
        "midx": lambda: tlo.samplers.MIDX(number, num_words=min(64, len(counts))),
        "gbce": lambda: tlo.samplers.Uniform(number, per_example=True, first_id=1),
    }[arguments.head]()
    losses = {
        "in-batch": tlo.losses.SampledSoftmax,
        "gbce": lambda: tlo.losses.GeneralizedBCE(arguments.calibration),
    }
    head = tlo.heads.TiedSampledHead(embedding, sampler, **of_bias)
    return head, losses.get(arguments.head, tlo.losses.ComplementarySum)()


def sequences(histories: data.Histories, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns items to train on, behind a 0, and what follows each; -1 where that is not learned.

    Long histories are several sequences, the last one full: each item is learned once, in a
    later sequence from at most the `length` items before it.
    """
    rows = []
    for items in histories.train:
        for end in [len(items), *range(len(items) - length, 1, -length)]:
            part = items[max(end - length - 1, 0) : end]
            following = part.copy()
            if end > length + 1:  # its first item is the last one of the sequence before
                following[0] = -1
            rows.append((np.append(0, part[:-1]), following))
    return rows


def batches(rows: list[Any], batch_size: int, seed: int) -> tf.data.Dataset:
    """Returns batches of sequences of like length, in another order in each epoch."""
    rng = np.random.default_rng(seed)
    sizes = np.array([len(items) for items, _ in rows])

    def epoch() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = np.argsort(sizes + 2 * rng.random(len(sizes)))
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

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for users in data.by_length(before, batch_size):
            yield data.padded([before[u] for u in users]), items[users]

    signature = tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int64)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(-(-len(items) // batch_size)))


def names_of(file: Path | None) -> dict[int, str]:
    """Returns the names of items: lines of an id, white space, and a name."""
    names: dict[int, str] = {}
    lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        item, _, name = line.replace("\t", " ").strip().partition(" ")
        if not item.isdigit() or not name.strip():
            raise SystemExit(f"{file}, line {number}: must be an item's id and name; got {line!r}")
        names[int(item)] = name.strip()
    return names


def parse(command_line: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="a file, or a folder with one")
    parser.add_argument("--head", choices=HEADS, help="default: exact, or uniform for large sets")
    parser.add_argument("--candidates", type=int, help="default: 1000 per batch, 100 per example")
    parser.add_argument(
        "--queue", type=int, default=0, help="earlier batches of in-batch candidates"
    )
    parser.add_argument("--calibration", type=float, default=0.75, help="t of gBCE")
    parser.add_argument(
        "--bias",
        action=argparse.BooleanOptionalAction,
        help="biases of items, which start at log frequencies, as sigmoids and very large "
        "catalogues need them; default: for gbce, and over 100,000 items",
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--attention-heads", type=int, default=2)
    parser.add_argument(
        "--length", type=int, default=50, help="the last items of a history that are used"
    )
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=64, help="users per step")
    parser.add_argument(
        "--epochs",
        type=int,
        help="default: 20; more for less than 3,000 batches in all, fewer for more than 40,000",
    )
    parser.add_argument(
        "--patience",
        type=int,
        help="epochs without improvement before it stops; default: a quarter of all",
    )
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        default="adam",
        help="row-adam updates only the rows of items in the step: for very large catalogues, with "
        "a learning rate several times as high",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--user", type=int, help="user whose best items are printed; default: the first"
    )
    parser.add_argument("--names", type=Path, help="a file with a line per item: id and name")
    parser.add_argument("--k", type=int, help="how many items are printed; default: 10, or all")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/next_item"), help="folder for the results"
    )
    return parser.parse_args(command_line)


def choose(arguments: Any, histories: data.Histories, steps: int) -> None:
    """Fills in the defaults that depend on the data; an epoch has so many steps."""
    if arguments.head is None:
        pairs = int(histories.counts.sum()) * histories.num_classes
        arguments.head = "exact" if pairs <= MOST_PAIRS else "uniform"
    if arguments.bias is None:
        arguments.bias = arguments.head == "gbce" or histories.num_classes > 100_000
    if arguments.candidates is None:
        arguments.candidates = 100 if arguments.head in ("midx", "gbce") else 1000
    if arguments.epochs is None:
        few, many = 3_000 // steps, 40_000 // steps
        arguments.epochs = min(max(few, min(many, 20), 3), 80)
    if arguments.patience is None:
        arguments.patience = max(arguments.epochs // 4, 2)


def main(command_line: list[str] | None = None) -> dict[str, Any]:
    """Trains, tests, saves and serves; returns what it writes to results.json."""
    arguments = parse(command_line)
    histories = data.load(arguments.data)
    names = names_of(arguments.names)
    user = histories.users[0] if arguments.user is None else arguments.user
    check(arguments, histories, user)
    keras.utils.set_random_seed(arguments.seed)
    rows = sequences(histories, arguments.length)
    train = batches(rows, arguments.batch_size, arguments.seed)
    choose(arguments, histories, len(train))
    steps = arguments.epochs * len(train)
    recommender = Recommender(histories, arguments, steps)
    results = train_and_rank(
        recommender.trained,
        recommender.ranking,
        train,
        functools.partial(held_out, histories),
        arguments.head,
        arguments.patience,
        arguments,
    )
    recommender.server.save(arguments.output / "model.keras")
    texts = ["no item", *(names.get(item, str(item)) for item in histories.ids[1:].tolist())]
    folder = new_version(arguments.output / "served")
    tlo.export(recommender.server, folder, k=arguments.k, names=texts)
    print(f"user {user}:", ", ".join(ask(folder, histories.whole(user))))
    (arguments.output / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    say(results)
    return results


def check(arguments: Any, histories: data.Histories, user: int) -> None:
    """Refuses before the training what would fail after it."""
    if user not in histories.users:
        raise SystemExit(f"--user must be one of the data; got {user}")
    items = histories.num_classes - 1
    arguments.k = min(10, items) if arguments.k is None else arguments.k
    if not 1 <= arguments.k <= items:
        raise SystemExit(f"--k must be in [1, {items}], the items; got {arguments.k}")
    for name in ("epochs", "patience", "batch_size", "length", "candidates"):
        given = getattr(arguments, name)
        if given is not None and given < 1:
            raise SystemExit(f"--{name.replace('_', '-')} must be at least 1; got {given}")


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


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
