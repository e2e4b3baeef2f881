# SPDX-License-Identifier: Apache-2.0
"""A recipe for extreme classification, for any data set in the repository's format.

Features are log TF-IDF, or standard scores where they are dense. The model has one wide layer with
dropout and an exact softmax, or a sampled one for many classes, whose bias starts at log class
frequencies; the learning rate falls to 0. After training its probabilities are combined with the
labels of the nearest training examples, by hidden activations and by features, with weights chosen
on held-out examples. The script trains with a progress bar, TensorBoard and early stopping on the
P@1 of held-out examples, keeps the best weights, evaluates on the test set, and writes the best
classes of each test example to a file.

    python examples/extreme_classification.py
    python examples/extreme_classification.py --data path/to/EURLex-4K --head exact --epochs 20
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.datasets import (
    SparseExamples,
    load_wordnet,
    read_xc,
    split_files,
    tf_idf,
    write_predictions,
)

LEARNING_RATES = {"exact": 0.005, "sampled": 0.01}
NUM_CANDIDATES = {"exact": 256, "sampled": 1000}  # classes updated per example, or per batch
MOST_FOR_EXACT = 40_000  # classes, without `--head`
FEWEST_EPOCHS, FEWEST_STEPS = 8, 400  # without `--epochs`
PATIENCE, PATIENCE_STEPS = 5, 50  # smallest number of epochs without improvement; and of steps
DENSE = 0.5  # features are dense if examples have more than this share of them
HELD_OUT, FEWEST_HELD_OUT, MOST_HELD_OUT = 0.02, 1000, 0.1  # of the examples, if no share is given


def main() -> None:
    arguments = parse()
    train, test = load(arguments.data)
    if len(train) < 2:
        raise SystemExit(f"--data must have 2 training examples with labels; got {len(train)}")
    if not len(test):
        raise SystemExit("--data must have at least one test example; got none")
    if not 1 <= arguments.k <= train.num_labels:
        raise SystemExit(f"--k must be in [1, {train.num_labels}], the classes; got {arguments.k}")
    settle(arguments, len(train), train.num_labels)
    arguments.dense = share_of_features(train) == 1
    rest, held_out = hold_out(train, arguments.held_out)
    keras.utils.set_random_seed(arguments.seed)
    model = build_model(rest, arguments)

    start = time.perf_counter()
    epochs = fit(model, rest, held_out, arguments)
    weights = choose_weights(model, rest, held_out, arguments)
    best = with_neighbors(model, train, arguments, **weights)
    seconds = time.perf_counter() - start

    questions = batches(test, arguments)
    scores, ids = best.predict(questions, verbose=0)
    write_predictions(arguments.output / "predictions.txt", scores, ids, train.num_labels)
    softmax = tlo.top_k_model(model, arguments.k).predict(questions, verbose=0)
    results = {
        "data": arguments.data,
        "head": arguments.head,
        "epochs": epochs,
        "seconds": round(seconds, 1),
        "weights": weights,
        "softmax": precision(softmax[1], test),
        "with_neighbors": precision(ids, test),
    }
    print(json.dumps(results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", default="wordnet/hyper", help="wordnet/hyper, wordnet/lemma, or a folder"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/extreme_classification"))
    parser.add_argument(
        "--epochs",
        type=int,
        help=f"at most; by default {FEWEST_EPOCHS}, or as many as have {FEWEST_STEPS} steps",
    )
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument(
        "--residual", type=int, default=0, help="residual blocks after the first layer"
    )
    parser.add_argument(
        "--head",
        choices=LEARNING_RATES,
        help=f"by default exact for up to {MOST_FOR_EXACT:,} classes, else sampled",
    )
    parser.add_argument("--products", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument(
        "--learning-rate", type=float, help="rate of the layer; the head has twice this rate"
    )
    parser.add_argument(
        "--held-out",
        type=float,
        help=f"share of the training examples; by default {HELD_OUT}, or what makes up "
        f"{FEWEST_HELD_OUT:,}, at most {MOST_HELD_OUT}",
    )
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of weights, dropout and order; held-out examples do not change",
    )
    arguments = parser.parse_args()
    if arguments.epochs is not None and arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1; got {arguments.epochs}")
    if arguments.held_out is not None and not 0 < arguments.held_out < 1:
        parser.error(f"--held-out must be in (0, 1); got {arguments.held_out}")
    if arguments.batch_size < 1:
        parser.error(f"--batch-size must be at least 1; got {arguments.batch_size}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    return arguments


def settle(arguments: argparse.Namespace, number: int, num_classes: int) -> None:
    """Fills in missing arguments that depend on the number of examples and classes."""
    if arguments.head is None:
        arguments.head = "exact" if num_classes <= MOST_FOR_EXACT else "sampled"
    if arguments.held_out is None:
        arguments.held_out = max(HELD_OUT, min(FEWEST_HELD_OUT / number, MOST_HELD_OUT))
    if arguments.epochs is None:
        steps = steps_of_epoch(number - num_held_out(number, arguments.held_out), arguments)
        arguments.epochs = max(FEWEST_EPOCHS, math.ceil(FEWEST_STEPS / steps))


def num_held_out(number: int, share: float) -> int:
    return min(max(1, round(share * number)), number - 1)


def steps_of_epoch(number: int, arguments: argparse.Namespace) -> int:
    return max(1, number // arguments.batch_size)


def load(data: str) -> tuple[SparseExamples, ...]:
    """Returns training examples with labels, and all test examples, with features to train on."""
    if data.startswith("wordnet/"):
        train, test = load_wordnet(data.removeprefix("wordnet/"))
    else:
        train, test = (read_xc(*split_files(data, split)) for split in ("train", "test"))
    train = train.with_labels()
    weighted = tf_idf(train, test, log=True)  # a test set of another width is an error
    return standard_scores(train, test) if share_of_features(train) > DENSE else weighted


def standard_scores(train: SparseExamples, test: SparseExamples) -> tuple[SparseExamples, ...]:
    """Returns examples with dense features, of norm about 1."""
    matrices = [matrix(examples) for examples in (train, test)]
    mean, deviation = (f(matrices[0], axis=0, dtype=float) for f in (np.mean, np.std))
    varies = deviation > 1e-6 * np.abs(mean)
    scale = math.sqrt(train.num_features) * np.where(varies, deviation, 1)
    return tuple(
        with_matrix(examples, (rows - mean) / scale)
        for examples, rows in zip((train, test), matrices, strict=True)
    )


def matrix(examples: SparseExamples) -> np.ndarray:
    rows = np.repeat(np.arange(len(examples)), np.diff(examples.feature_splits))
    result = np.zeros([len(examples), examples.num_features], np.float32)
    result[rows, examples.feature_ids] = examples.feature_values
    return result


def with_matrix(examples: SparseExamples, rows: np.ndarray) -> SparseExamples:
    number, width = rows.shape
    return dataclasses.replace(
        examples,
        feature_splits=np.arange(number + 1) * width,
        feature_ids=np.tile(np.arange(width), number),
        feature_values=rows.ravel(),
    )


def share_of_features(examples: SparseExamples) -> float:
    """Returns the share of the features that an example has, on average."""
    return len(examples.feature_ids) / max(1, len(examples) * examples.num_features)


def batches(
    examples: SparseExamples, arguments: argparse.Namespace, **options: Any
) -> tf.data.Dataset:
    """Returns batches of features, sparse or dense, and labels."""
    result = examples.dataset(arguments.batch_size, **options)
    return result.map(lambda x, y: (tf.sparse.to_dense(x), y)) if arguments.dense else result


def hold_out(train: SparseExamples, share: float) -> tuple[SparseExamples, SparseExamples]:
    order = np.random.default_rng(0).permutation(len(train))
    number = num_held_out(len(train), share)
    return train.take(order[number:]), train.take(order[:number])


def build_model(train: SparseExamples, arguments: argparse.Namespace) -> keras.Model:
    rate = arguments.learning_rate
    if rate is None:
        rate = LEARNING_RATES[arguments.head]
    head, loss = build_head(train, arguments, tlo.optimizers.RowAdam(2 * rate))
    inputs = keras.Input([train.num_features], sparse=not arguments.dense)
    hidden = tlo.layers.SparseDense(arguments.hidden, activation="relu")(inputs)
    hidden = keras.layers.Dropout(arguments.dropout)(hidden)
    for _ in range(arguments.residual):
        block = keras.layers.Dense(arguments.hidden, activation="relu")(hidden)
        hidden = keras.layers.Add()([hidden, keras.layers.Dropout(arguments.dropout)(block)])
    model = keras.Model(inputs, head(hidden))
    steps = arguments.epochs * steps_of_epoch(len(train), arguments)
    # The head's rate falls with the model's.
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps, alpha=0.01)
    model.compile(
        tlo.optimizers.RowRMSprop(schedule),
        loss,
        metrics=[tlo.metrics.PrecisionAtK(1), tlo.metrics.PrecisionAtK(5)],
    )
    return model


def build_head(train: SparseExamples, arguments: argparse.Namespace, optimizer: Any) -> Any:
    """Returns a head, and the loss that trains it."""
    classes, counts = train.num_labels, train.label_counts() + 1
    bias = tlo.initializers.LogFrequency(counts)
    size = min(NUM_CANDIDATES[arguments.head], classes)
    if arguments.head == "exact":
        return tlo.heads.ExactSoftmaxHead(
            classes, optimizer, size, products=arguments.products, bias_initializer=bias
        ), tlo.losses.SoftmaxCrossentropy()
    sampler = tlo.samplers.Unigram(counts, size, 0.75)
    head = tlo.heads.SampledHead(classes, sampler, optimizer, bias_initializer=bias)
    return head, tlo.losses.ComplementarySum()


def fit(
    model: keras.Model,
    train: SparseExamples,
    held_out: SparseExamples,
    arguments: argparse.Namespace,
) -> int:
    """Trains, leaves the best weights in the model, and returns how many epochs it took."""
    # More labels count more: the loss is a mean over the labels of an example, P@k is not.
    mean = len(train.label_ids) / len(train)
    weighted = batches(
        train,
        arguments,
        shuffle=True,
        seed=arguments.seed,
        drop_remainder=len(train) >= arguments.batch_size,
    ).map(lambda x, y: (x, y, tf.cast(y.row_lengths(), tf.float32) / mean))
    file = arguments.output / "best.weights.h5"
    watch = {"monitor": "val_precision_at_1", "mode": "max"}
    patience = max(PATIENCE, math.ceil(PATIENCE_STEPS / steps_of_epoch(len(train), arguments)))
    history = model.fit(
        weighted,
        validation_data=batches(held_out, arguments),
        epochs=arguments.epochs,
        shuffle=False,  # the data set does it
        callbacks=[
            keras.callbacks.TensorBoard(arguments.output),
            keras.callbacks.ModelCheckpoint(
                file, save_best_only=True, save_weights_only=True, **watch
            ),
            keras.callbacks.EarlyStopping(patience=patience, **watch),
        ],
    )
    model.load_weights(file)
    return len(history.epoch)


def choose_weights(
    model: keras.Model,
    rest: SparseExamples,
    held_out: SparseExamples,
    arguments: argparse.Namespace,
) -> dict[str, float]:
    """Returns the weights of neighbors by h and by features, chosen on the held-out examples."""
    trial = with_neighbors(model, rest, arguments, weight=0.3, feature_weight=0.4)
    chosen = trial.choose_weights(batches(held_out, arguments))
    return {name: chosen[name] for name in ("weight", "feature_weight")}


def with_neighbors(
    model: keras.Model, examples: SparseExamples, arguments: argparse.Namespace, **weights: float
) -> tlo.NearestNeighborModel:
    best = tlo.NearestNeighborModel(model, arguments.k, **weights)
    best.adapt(batches(examples, arguments))
    return best


def precision(ids: np.ndarray, examples: SparseExamples) -> dict[str, float]:
    """Returns P@1, P@3 and P@5 in percent; an example without labels counts as 0."""
    splits, labels = examples.label_splits, examples.label_ids
    hits = np.stack([np.isin(row, labels[splits[i] : splits[i + 1]]) for i, row in enumerate(ids)])
    return {
        f"P@{k}": round(100 * float(hits[:, :k].mean()), 2) for k in (1, 3, 5) if k <= hits.shape[1]
    }


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
