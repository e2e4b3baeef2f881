# SPDX-License-Identifier: Apache-2.0
"""An n-gram language model on a text file: the softmax, exact or sampled, or a spherical loss.

The embeddings of the preceding words are concatenated and go through hidden layers; the head scores
every word of the vocabulary. If a file of rated word pairs is given, the embedding is evaluated by
the Spearman correlation of its cosines with these ratings. Everything is written for TensorBoard.

    python examples/ngram_language_model.py novels.txt --loss z_loss --similarity SIMLEX-999.txt
    tensorboard --logdir runs/ngram

The text is plain or compressed (.xz, .gz), with words separated by white space. The file of pairs
has a line per pair: two words and a number.
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

import tfx_largeout as tlo

LOSSES = ("softmax", "exact_softmax", "sampled", "z_loss", "spherical_softmax", "taylor_softmax")
# For the hidden layers and for the head: SGD; RowAdam for `sampled`.
RATES = dict.fromkeys(LOSSES, (0.1, 10.0)) | {"sampled": (0.002, 0.004)}


def read_words(path: Path, limit: int | None = None) -> list[str]:
    """Returns the words of a text, each line ended by `</s>`."""
    openers = {".xz": lzma.open, ".gz": gzip.open}
    words: list[str] = []
    with openers.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
        for line in file:
            words += [*line.split(), "</s>"]
            if limit is not None and len(words) >= limit:
                return words[:limit]
    return words


def number_words(words: list[str]) -> tuple[list[str], np.ndarray]:
    """Returns the vocabulary, by falling frequency, and the text as ids."""
    vocabulary = [word for word, _ in collections.Counter(words).most_common()]
    numbers = {word: i for i, word in enumerate(vocabulary)}
    return vocabulary, np.array([numbers[word] for word in words], np.int64)


def ngrams(text: np.ndarray, order: int, batch_size: int, shuffle: bool) -> tf.data.Dataset:
    """Returns batches of (the order - 1 words before, the word)."""
    starts = tf.data.Dataset.range(len(text) - order + 1)
    if shuffle:
        starts = starts.shuffle(200_000, seed=1)
    numbers, offsets = tf.constant(text), tf.range(order, dtype=tf.int64)

    def cut(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        window = tf.gather(numbers, start[:, tf.newaxis] + offsets)
        return window[:, :-1], window[:, -1]

    return starts.batch(batch_size, drop_remainder=shuffle).map(cut).prefetch(2)


def build_model(num_words: int, arguments: Any, counts: np.ndarray) -> keras.Model:
    """Returns the compiled model; `counts` says how often each word occurs."""
    head, loss = build_head(num_words, arguments.loss, arguments.head_learning_rate, counts)
    hidden = [keras.layers.Dense(width, activation="relu") for width in arguments.hidden]
    model = keras.Sequential(
        [
            keras.Input((arguments.order - 1,), dtype="int64"),
            tlo.layers.RowEmbedding(num_words, arguments.embedding, name="embedding"),
            keras.layers.Flatten(),
            *hidden,
            head,
        ]
    )
    metrics = [
        tlo.metrics.PrecisionAtK(1),
        tlo.metrics.PrecisionAtK(5),
        tlo.metrics.MeanReciprocalRank(),
    ]
    # These touch only the rows of the batch; Adam would visit the whole embedding in each step.
    if arguments.loss == "sampled":
        steps = arguments.epochs * arguments.steps_per_epoch  # the head's rate falls with it
        schedule = keras.optimizers.schedules.CosineDecay(
            arguments.learning_rate, steps, alpha=0.01
        )
        optimizer = tlo.optimizers.RowAdam(schedule)
    else:
        optimizer = keras.optimizers.SGD(arguments.learning_rate)
    model.compile(optimizer, loss=loss, metrics=metrics)
    return model


def build_head(num_words: int, loss: str, rate: float, counts: np.ndarray) -> tuple[Any, Any]:
    """Returns the head and its loss."""
    if loss == "sampled":  # 100 candidates per example
        sampler = tlo.samplers.Unigram(counts + 1, min(100, num_words), 0.75, per_example=True)
        bias = tlo.initializers.LogFrequency(counts + 1)
        optimizer = tlo.optimizers.RowAdam(rate)
        head = tlo.heads.SampledHead(num_words, sampler, optimizer, bias_initializer=bias)
        return head, tlo.losses.ComplementarySum()
    if loss == "softmax":
        return tlo.heads.DenseHead(num_words), tlo.losses.SoftmaxCrossentropy()
    if loss == "exact_softmax":  # the same loss, without its logits
        head = tlo.heads.ExactSoftmaxHead(num_words, tlo.optimizers.RowSGD(rate))
        return head, tlo.losses.SoftmaxCrossentropy()
    if loss == "spherical_softmax":
        # With positive logits, logits and probabilities have the same order.
        head = tlo.heads.FactoredHead(num_words, rate, use_bias=True, bias_initializer="ones")
        return head, tlo.losses.SphericalSoftmax(epsilon=0.1)
    head = tlo.heads.FactoredHead(num_words, rate, use_bias=True)
    return head, tlo.losses.ZLoss() if loss == "z_loss" else tlo.losses.TaylorSoftmax()


class WordSimilarity(keras.callbacks.Callback):
    """Adds `similarity`, the Spearman correlation with human ratings, to the logs of an epoch.

    Put it before the TensorBoard callback, which then shows it.
    """

    def __init__(self, path: Path, vocabulary: list[str]) -> None:
        super().__init__()
        numbers = {word: i for i, word in enumerate(vocabulary)}
        lines = [line.lower().split() for line in path.read_text().splitlines()]
        known = [row for row in lines if len(row) == 3 and row[0] in numbers and row[1] in numbers]
        self.pairs = np.array([[numbers[a], numbers[b]] for a, b, _ in known]).reshape(-1, 2)
        self.ratings = np.array([float(row[2]) for row in known])

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        table = self.model.get_layer("embedding").embeddings.numpy()
        left, right = table[self.pairs[:, 0]], table[self.pairs[:, 1]]
        norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        cosines = (left * right).sum(axis=1) / norms
        if logs is not None:
            logs["similarity"] = spearman(cosines, self.ratings)


def spearman(left: np.ndarray, right: np.ndarray) -> float:
    """Returns the correlation of the ranks; ties share their mean rank."""
    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def parse(command_line: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--loss", choices=LOSSES, default="z_loss")
    parser.add_argument("--similarity", type=Path, help="file of rated pairs of words")
    parser.add_argument(
        "--order", type=int, default=6, help="n: the n - 1 words before are the input"
    )
    parser.add_argument("--embedding", type=int, default=100)
    parser.add_argument("--hidden", type=int, nargs="*", default=[300])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps-per-epoch", type=int, default=2000)
    (below, head), (sampled_below, sampled_head) = RATES["z_loss"], RATES["sampled"]
    parser.add_argument(
        "--learning-rate",
        type=float,
        help=f"rate of the hidden layers; by default {below}, {sampled_below} for sampled",
    )
    parser.add_argument(
        "--head-learning-rate",
        type=float,
        help=f"by default {head}, {sampled_head} for sampled; softmax has --learning-rate for all",
    )
    parser.add_argument("--words", type=int, help="only the first words of the text")
    parser.add_argument(
        "--held-out", type=int, default=20_000, help="number of last words to evaluate on"
    )
    parser.add_argument("--csv", type=Path, help="a file for the figures of each epoch")
    parser.add_argument("--logs", type=Path, default=Path("runs/ngram"))
    arguments = parser.parse_args(command_line)
    if arguments.order < 2:
        raise SystemExit(f"--order must be at least 2; got {arguments.order}")
    below, head = RATES[arguments.loss]
    if arguments.learning_rate is None:
        arguments.learning_rate = below
    if arguments.head_learning_rate is None:
        arguments.head_learning_rate = head
    return arguments


def main(command_line: list[str] | None = None) -> dict[str, list[float]]:
    """Trains; returns the history."""
    arguments = parse(command_line)
    keras.utils.set_random_seed(1)
    vocabulary, text = number_words(read_words(arguments.text, arguments.words))
    least, most = arguments.order, len(text) - arguments.order  # each part has an n-gram
    if not least <= arguments.held_out <= most:
        raise SystemExit(
            f"--held-out must be in [{least}, {most}], of {len(text)} words and --order "
            f"{arguments.order}; got {arguments.held_out}"
        )
    train, test = text[: -arguments.held_out], text[-arguments.held_out :]
    number = len(train) - arguments.order + 1
    if number < arguments.batch_size:
        raise SystemExit(
            f"--batch-size must be at most {number}, the n-grams to train on; got "
            f"{arguments.batch_size}"
        )
    print(f"{len(text):,} words, {len(vocabulary):,} types")
    counts = np.bincount(train, minlength=len(vocabulary))
    model = build_model(len(vocabulary), arguments, counts)
    callbacks: list[keras.callbacks.Callback] = []
    if arguments.similarity is not None:
        callbacks.append(WordSimilarity(arguments.similarity, vocabulary))
    if arguments.csv is not None:
        callbacks.append(keras.callbacks.CSVLogger(arguments.csv))
    callbacks.append(keras.callbacks.TensorBoard(arguments.logs / arguments.loss))
    history = model.fit(
        ngrams(train, arguments.order, arguments.batch_size, shuffle=True).repeat(),
        validation_data=ngrams(test, arguments.order, arguments.batch_size, shuffle=False),
        epochs=arguments.epochs,
        steps_per_epoch=arguments.steps_per_epoch,
        shuffle=False,  # the data set does it
        callbacks=callbacks,
        verbose=2,
    )
    return history.history


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
