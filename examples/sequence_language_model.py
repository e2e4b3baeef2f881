# SPDX-License-Identifier: Apache-2.0
"""A language model of sequences, a causal Transformer or an LSTM, with the softmax over all words.

    python examples/sequence_language_model.py novels.txt
    python examples/sequence_language_model.py novels.txt --trunk lstm --head exact
    tensorboard --logdir runs/sequence

Each line of the text is a sequence; long ones are cut, shorter ones are padded, and the loss gets
the mask. `--head` chooses how the softmax is trained:

- `sampled`: candidates per word (`SampledHead`);
- `tied`: likewise, and W is the table of the input embedding (`TiedSampledHead`);
- `exact`: the softmax's loss, without its logits (`ExactSoftmaxHead`);
- `tied_exact`: likewise, and W is the table of the input embedding (`TiedExactSoftmaxHead`);
- `dense`: the full softmax (`DenseHead`).

Perplexities are exact with all of them. The text is plain or compressed (.xz, .gz), with words
separated by white space.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import lzma
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import tfx_largeout as tlo

TRUNKS, HEADS = ("transformer", "lstm"), ("sampled", "tied", "exact", "tied_exact", "dense")
PADDING, END = 0, 1  # the first ids; words follow


def read_lines(path: Path, limit: int | None) -> list[list[str]]:
    """Returns the words of each line that has any, of the first lines."""
    openers = {".xz": lzma.open, ".gz": gzip.open}
    with openers.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
        lines = [words for line in file if (words := line.split())]
    return lines[:limit]


def number_words(lines: list[list[str]]) -> dict[str, int]:
    """Returns the ids of all words, by falling frequency."""
    counts = collections.Counter(word for line in lines for word in line)
    return {word: i + 2 for i, (word, _) in enumerate(counts.most_common())}


def sequences(lines: list[list[str]], ids: dict[str, int], length: int) -> np.ndarray:
    """Returns rows `[n, length + 1]` of ids: the end of the line before, words, an end, padding.

    A long line continues in the next row, which begins with the last word of this row.
    """
    rows = []
    for line in lines:
        text = [END, *(ids[word] for word in line), END]
        rows += [text[i : i + length + 1] for i in range(0, len(text) - 1, length)]
    result = np.full((len(rows), length + 1), PADDING, np.int32)
    for row, text in zip(result, rows, strict=True):
        row[: len(text)] = text
    return result


def batches(rows: np.ndarray, batch_size: int, shuffle: bool) -> tf.data.Dataset:
    """Returns batches of (words, the following words); padding if there is none."""
    following = rows[:, 1:]
    words = np.where(following == PADDING, PADDING, rows[:, :-1])
    data = tf.data.Dataset.from_tensor_slices((words, following))
    data = data.shuffle(len(rows), seed=1) if shuffle else data
    return data.batch(batch_size, drop_remainder=shuffle).prefetch(2)


def transformer(x: Any, width: int, num_heads: int, dropout: float) -> Any:
    """A block of causal attention and a feed-forward network, each added to its input.

    By `Add` layers: a mask gets lost in `x + y`.
    """
    normal = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(num_heads, width // num_heads, dropout=dropout)
    x = layers.Add()([x, attention(normal, normal, use_causal_mask=True)])
    normal = layers.LayerNormalization()(x)
    feed_forward = layers.Dense(width)(layers.Dense(4 * width, "gelu")(normal))
    return layers.Add()([x, layers.Dropout(dropout)(feed_forward)])


class Positions(layers.Layer):
    """Adds a vector of each position."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.table = self.add_weight(shape=input_shape[1:], initializer="uniform", name="table")

    def call(self, x: Any) -> Any:
        return x + ops.cast(self.table, x.dtype)


def build_model(num_ids: int, counts: np.ndarray, arguments: Any, steps: int) -> keras.Model:
    """Returns the compiled model; `counts` has how often each id is a target."""
    embedding = tlo.layers.RowEmbedding(num_ids, arguments.width, mask_zero=True, name="embedding")
    inputs = keras.Input((arguments.length,), dtype="int32")
    x = embedding(inputs)
    if arguments.trunk == "transformer":
        x = Positions()(x)
        for _ in range(arguments.blocks):
            x = transformer(x, arguments.width, 4, arguments.dropout)
        x = layers.LayerNormalization()(x)
    else:
        for _ in range(arguments.blocks):
            x = layers.Dropout(arguments.dropout)(x)
            x = layers.LSTM(arguments.width, return_sequences=True)(x)
    head, loss = build_head(arguments, counts, embedding)
    model = keras.Model(inputs, head(x))
    schedule = keras.optimizers.schedules.CosineDecay(arguments.learning_rate, steps, alpha=0.01)
    optimizer = tlo.optimizers.RowAdam(schedule)  # in the embedding, only rows of words that occur
    # In these metrics all words have the same weight; Keras's val_loss is a mean over batches.
    metrics = [tlo.metrics.Perplexity(), tlo.metrics.PrecisionAtK(1)]
    model.compile(optimizer, loss=loss, weighted_metrics=metrics)
    return model


def build_head(arguments: Any, counts: np.ndarray, embedding: Any) -> tuple[Any, Any]:
    """Returns the head and its loss. The rate of its optimizer falls with the model's."""
    bias = tlo.initializers.LogFrequency(counts + 1)
    sampler = tlo.samplers.Unigram(
        counts + 1, min(arguments.candidates, len(counts)), power=0.75, per_example=True
    )
    optimizer = tlo.optimizers.RowAdam(arguments.learning_rate)
    if arguments.head == "sampled":
        head = tlo.heads.SampledHead(len(counts), sampler, optimizer, bias_initializer=bias)
        return head, tlo.losses.ComplementarySum()
    if arguments.head == "tied":
        head = tlo.heads.TiedSampledHead(embedding, sampler, bias_initializer=bias)
        return head, tlo.losses.ComplementarySum()
    if arguments.head == "tied_exact":
        head = tlo.heads.TiedExactSoftmaxHead(embedding, bias_initializer=bias)
        return head, tlo.losses.SoftmaxCrossentropy()
    if arguments.head == "exact":
        head = tlo.heads.ExactSoftmaxHead(len(counts), optimizer, bias_initializer=bias)
        return head, tlo.losses.SoftmaxCrossentropy()
    return tlo.heads.DenseHead(len(counts), bias_initializer=bias), tlo.losses.SoftmaxCrossentropy()


def parse(command_line: list[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--trunk", choices=TRUNKS, default="transformer")
    parser.add_argument("--head", choices=HEADS, default="tied")
    parser.add_argument("--candidates", type=int, default=100, help="candidates per word")
    parser.add_argument("--length", type=int, default=32, help="words per sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=32, help="sequences per step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--lines", type=int, help="only the first lines of the text")
    parser.add_argument(
        "--held-out", type=int, default=500, help="number of last lines to evaluate on"
    )
    parser.add_argument("--logs", type=Path, default=Path("runs/sequence"))
    return parser.parse_args(command_line)


def main(command_line: list[str] | None = None) -> dict[str, list[float]]:
    """Trains; returns the history, with the perplexity of the held-out lines."""
    arguments = parse(command_line)
    keras.utils.set_random_seed(1)
    lines = read_lines(arguments.text, arguments.lines)
    ids = number_words(lines)
    if not 0 < arguments.held_out < len(lines):
        raise SystemExit(
            f"--held-out must be in (0, {len(lines)}), the lines; got {arguments.held_out}"
        )
    held_out = len(lines) - arguments.held_out
    train, test = (
        sequences(part, ids, arguments.length) for part in (lines[:held_out], lines[held_out:])
    )
    num_ids = len(ids) + 2
    counts = np.bincount(train[:, 1:].ravel(), minlength=num_ids)
    counts[PADDING] = 0
    print(f"{counts.sum():,} words in {len(train):,} sequences, {len(ids):,} types")
    steps = arguments.epochs * (len(train) // arguments.batch_size)
    model = build_model(num_ids, counts, arguments, steps)
    history = model.fit(
        batches(train, arguments.batch_size, shuffle=True),
        validation_data=batches(test, arguments.batch_size, shuffle=False),
        epochs=arguments.epochs,
        shuffle=False,  # the data set does it
        callbacks=[keras.callbacks.TensorBoard(arguments.logs / arguments.head)],
        verbose=2,
    ).history
    print(f"perplexity of the held-out lines: {history['val_perplexity'][-1]:.1f}")
    return history


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
