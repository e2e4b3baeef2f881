# SPDX-License-Identifier: Apache-2.0
"""A recommender of the next item: a causal Transformer (as SASRec) over what a user did.

    python examples/next_item.py path/to/beauty
    python examples/next_item.py path/to/beauty --head midx --candidates 100
    tensorboard --logdir runs/next_item

The data is a file, or a folder with one, in a format of `histories.py`. W of the head is the table
of the item embedding. `--head` chooses the loss, and the candidates of a training step:

- `exact`: the softmax over all items (`TiedExactSoftmaxHead`); the default while actions times
  items are 10^10 at most, about 25 minutes on one core, and `log-uniform` for more;
- `uniform`, `log-uniform`, `popularity`: candidates of the batch from these distributions;
- `in-batch`: what comes next elsewhere in the batch, and in `--queue` earlier ones;
- `midx`: candidates of each position from a softmax over coded rows of W;
- `gbce`: uniform candidates of each position, and gSASRec's loss;
- `tensorflow`: `tf.nn.sampled_softmax_loss` as it is, with its own log-uniform candidates.

Each epoch is validated on the item before the last of each user, over the whole catalogue without
what the user had before; the best epoch's weights are kept. Then, once, the last item is ranked.
The model is saved as model.keras, which loads where this file is imported, and exported for
servers: `inputs` are ids of items, padded with 0, of any length (the last `--length` count); an
empty history gets what users begin with.
"""

from __future__ import annotations

import argparse
from typing import Any

import histories as data
import keras
import numpy as np
import recommender
import tensorflow as tf
from keras import layers, ops

import tfx_largeout as tlo

OPTIMIZERS = {"adam": tlo.optimizers.FusedAdam, "row-adam": tlo.optimizers.RowAdam}
MOST_PAIRS = 10**10  # of actions and items, that an exact epoch scores
PER_EXAMPLE = ("midx", "gbce")
SAMPLED = ("uniform", "log-uniform", "popularity", *PER_EXAMPLE, "tensorflow")
HEADS = ("exact", "in-batch", *SAMPLED)


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


class NextItem(recommender.Recommender):
    """The layers, and the models that are made of them; `trained` is of sequences of classes."""

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
        self.latest = Latest()
        sequence = keras.Input((None,), dtype="int64", name="sequence")
        self.trained = keras.Model(sequence, self.head(self.hidden(sequence)))
        rate = keras.optimizers.schedules.CosineDecay(arguments.learning_rate, steps, alpha=0.01)
        self.trained.compile(OPTIMIZERS[arguments.optimizer](rate, beta_2=0.98), loss=loss)
        self.finish(histories, length, loss)

    def hidden(self, sequence: Any) -> Any:
        """Returns h at each place."""
        x = sequence
        for layer in self.trunk:
            x = layer(x)
        return x

    def state(self, recent: Any) -> Any:
        return self.latest(self.hidden(recent), recent)


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


def parse(command_line: list[str] | None) -> Any:
    parser = recommender.options(__doc__)
    parser.add_argument(
        "--head", choices=HEADS, help="default: exact, or log-uniform for many items"
    )
    parser.add_argument(
        "--candidates", type=recommender.POSITIVE, help="default: 1000 per batch, 100 per example"
    )
    in_unit = recommender.number(float, "in [0, 1]", lambda t: 0 <= t <= 1)
    parser.add_argument("--calibration", type=in_unit, help="t of gBCE; default: 0.75")
    parser.add_argument(
        "--bias",
        action=argparse.BooleanOptionalAction,
        help="biases of items, which start at log frequencies: sigmoids and very large catalogues "
        "need them, and items that are never candidates, because they are never in training, are "
        "recommended without; default: for gbce and in-batch, and over 100,000 items",
    )
    parser.add_argument("--blocks", type=recommender.NOT_NEGATIVE, default=2)
    parser.add_argument("--attention-heads", type=recommender.POSITIVE, default=2)
    parser.add_argument(
        "--batch-size", type=recommender.POSITIVE, default=64, help="users per step"
    )
    parser.add_argument(
        "--epochs",
        type=recommender.POSITIVE,
        help="default: 20; more for less than 3,000 batches in all, fewer for more than 40,000",
    )
    parser.add_argument(
        "--patience",
        type=recommender.POSITIVE,
        help="epochs without improvement before it stops; default: a quarter of all",
    )
    parser.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        default="adam",
        help="row-adam updates only the rows of items in the step: for very large catalogues, with "
        "a learning rate several times as high",
    )
    parser.set_defaults(learning_rate=3e-3, output="runs/next_item")
    arguments = parser.parse_args(command_line)
    if arguments.attention_heads > arguments.width:
        heads, width = arguments.attention_heads, arguments.width
        parser.error(f"--attention-heads must be at most --width, {width}; got {heads}")
    return arguments


def choose(arguments: Any, histories: data.Histories, steps: int) -> None:
    """Fills in the defaults that depend on the data; an epoch has `steps` steps."""
    if arguments.head is None:
        pairs = int(histories.counts.sum()) * histories.num_classes
        arguments.head = "exact" if pairs <= MOST_PAIRS else "log-uniform"
    uses = {
        "candidates": (100 if arguments.head in PER_EXAMPLE else 1000, SAMPLED),
        "queue": (0, ("in-batch",)),
        "calibration": (0.75, ("gbce",)),
    }
    recommender.fill_in(arguments, "head", uses)
    if arguments.bias is None:
        needed = arguments.head in ("gbce", "in-batch")
        arguments.bias = needed or histories.num_classes > 100_000
    if arguments.epochs is None:
        few, many = 3_000 // steps, 40_000 // steps
        arguments.epochs = min(max(few, min(many, 20), 3), 80)
    if arguments.patience is None:
        arguments.patience = max(arguments.epochs // 4, 2)


def main(command_line: list[str] | None = None) -> dict[str, Any]:
    """Trains, tests, saves and serves; returns what it writes to results.json."""
    arguments = parse(command_line)
    histories, texts = recommender.read(arguments)
    keras.utils.set_random_seed(arguments.seed)
    rows = sequences(histories, arguments.length)
    train = recommender.batches(rows, arguments.batch_size, arguments.seed)
    choose(arguments, histories, len(train))
    model = NextItem(histories, arguments, arguments.epochs * len(train))
    return recommender.train_and_serve(
        model, train, histories, texts, arguments.head, arguments.patience, arguments
    )


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
