# SPDX-License-Identifier: Apache-2.0
"""Margins: their effect on classes that training never saw, and a step of Partial FC.

    python benchmarks/margins.py verification --seeds 0 1 2   # half an hour
    python benchmarks/margins.py steps                        # a million classes: 8 GB of memory

`verification`: glosses of the WordNet reverse dictionary, each with the rarest of its labels that
has 20 to 200 of them. A quarter of these classes is left out of training. Then pairs of their
glosses are classified by the cosine of their embeddings (h, 64 numbers): the same class, or two?
The threshold is the best one on pairs of one half of the classes; `accuracy` and `area` (under the
ROC curve) are measured on the other half. A seed determines weights, classes and pairs. All methods
have the same trunk and optimizer; W h is the softmax without a bias. For each method the rate,
epochs, scale and margin are chosen first, one after the other, by the area on the first half with
another seed.

`steps`: seconds and peak memory of a step at C = 1,000,000, D = 128, B = 128 with a cosine margin:
the full softmax by Keras's layer, by ExactSoftmaxHead, and with 10% of the classes per step, which
is Partial FC. Methods take turns for time; memory is measured in a process per method.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.datasets import load_wordnet, tf_idf
from tfx_largeout.losses import ActiveSetSoftmax, SoftmaxCrossentropy

SOFTMAX = {"rate": (2e-3, 5e-4, 8e-3), "epochs": (4, 8)}
COSINES = {"rate": (3e-2, 8e-3, 1e-1), "epochs": (4, 8), "cosine_scale": (16.0, 8.0, 32.0)}
# The values tried for each method; the first one starts the search.
METHODS: dict[str, dict[str, tuple[float, ...]]] = {
    "softmax": SOFTMAX,
    "softmax of cosines": COSINES,
    "CosFace": {**COSINES, "cosine_margin": (0.2, 0.1, 0.35)},
    "ArcFace": {**COSINES, "angular_margin": (0.3, 0.1, 0.5)},
}
SEED_OF_CHOICE = 99
BATCH, WIDTH, PAIRS = 256, 64, 20_000
CLASSES, STEP_WIDTH, STEP_BATCH, SHARE, MARGIN = 1_000_000, 128, 128, 0.1, 0.4


def glosses() -> tuple[Any, np.ndarray]:
    """Returns tf-idf of glosses, and the class of each."""
    data = tf_idf(load_wordnet("hyper")[0])[0]
    counts = data.label_counts()
    rows, classes = [], []
    for i in range(data.num_examples):
        own = data.label_ids[data.label_splits[i] : data.label_splits[i + 1]]
        own = own[(counts[own] >= 20) & (counts[own] <= 200)]
        if len(own):
            rows.append(i)
            classes.append(own[np.argmin(counts[own])])
    _, classes, found = np.unique(classes, return_inverse=True, return_counts=True)
    kept = found[classes] >= 5
    return data.take(np.array(rows)[kept]), np.unique(classes[kept], return_inverse=True)[1]


def pairs_of(classes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns places `[n, 2]` of as many pairs of the same class as of two, and which is which."""
    first = rng.integers(0, len(classes), PAIRS)
    order = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[order], classes[first])
    sizes = np.searchsorted(classes[order], classes[first], side="right") - starts
    same = order[starts + (rng.random(PAIRS) * sizes).astype(int)]
    other = rng.integers(0, len(classes), PAIRS)
    second = np.where(np.arange(PAIRS) % 2, same, other)
    is_pair = second != first
    is_same = classes[first] == classes[second]
    return np.stack([first, second], axis=1)[is_pair], is_same[is_pair]


def judged(embeddings: np.ndarray, classes: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Returns how well cosines separate pairs of the same class from others."""
    unit = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-30)
    halves = []
    for half in (0, 1):
        rows = np.flatnonzero(classes % 2 == half)
        pairs, is_same = pairs_of(classes[rows], rng)
        cosines = np.sum(unit[rows[pairs[:, 0]]] * unit[rows[pairs[:, 1]]], axis=1)
        halves.append((cosines, is_same))
    (cosines, is_same), (of_test, is_same_in_test) = halves
    thresholds = np.quantile(cosines, np.linspace(0, 1, 400))
    best = max(thresholds, key=lambda t: np.mean((cosines > t) == is_same))
    return {
        "accuracy": round(float(np.mean((of_test > best) == is_same_in_test)), 4),
        "area": area(of_test, is_same_in_test),
        "area_of_choice": area(cosines, is_same),
    }


def area(cosines: np.ndarray, is_same: np.ndarray) -> float:
    """Returns that under the ROC curve."""
    ranks = np.argsort(np.argsort(cosines)) + 1
    positives, n = is_same.sum(), len(cosines)
    above = ranks[is_same].sum() - positives * (positives + 1) / 2
    return round(float(above / (positives * (n - positives))), 4)


def verify(data: Any, classes: np.ndarray, options: dict[str, float], seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(classes.max() + 1)
    place = np.argsort(order)[classes]  # classes in a random order; the last quarter is left out
    num_seen = len(order) * 3 // 4
    seen, unseen = np.flatnonzero(place < num_seen), np.flatnonzero(place >= num_seen)
    inputs = keras.Input([data.num_features], sparse=True)
    hidden = tlo.layers.SparseDense(128, "relu")(inputs)
    hidden = keras.layers.Dense(WIDTH)(hidden)
    scale = options.get("cosine_scale")
    head = tlo.heads.DenseHead(num_seen, use_bias=False, cosine_scale=scale)
    model = keras.Model(inputs, head(hidden))
    margins = {name: value for name, value in options.items() if name.endswith("_margin")}
    model.compile(tlo.optimizers.RowAdam(options["rate"]), SoftmaxCrossentropy(**margins))
    batches = dataclasses.replace(
        data.take(seen),
        label_ids=place[seen],
        label_splits=np.arange(len(seen) + 1),
        num_labels=num_seen,
    )
    model.fit(
        batches.dataset(BATCH, shuffle=True, seed=seed),
        epochs=int(options["epochs"]),
        shuffle=False,
        verbose=0,
    )
    below = keras.Model(inputs, hidden)
    tests = data.take(unseen).dataset(1024).map(lambda x, y: x)
    embeddings = below.predict(tests, verbose=0)
    return judged(embeddings, place[unseen] - num_seen, rng) | {
        "classes_seen": num_seen,
        "classes_unseen": len(order) - num_seen,
        "glosses_seen": len(seen),
    }


def chosen(data: Any, classes: np.ndarray, tried: dict[str, tuple[float, ...]]) -> Any:
    best = {name: values[0] for name, values in tried.items()}
    most = verify(data, classes, best, SEED_OF_CHOICE)["area_of_choice"]
    for name, values in tried.items():
        for value in values[1:]:
            options = {**best, name: value}
            found = verify(data, classes, options, SEED_OF_CHOICE)["area_of_choice"]
            print(options, found, flush=True)
            if found > most:
                best, most = options, found
    return best


def verification(output: Any, seeds: list[int]) -> None:
    data, classes = glosses()
    rows = []
    for name, tried in METHODS.items():
        options = chosen(data, classes, tried)
        columns = {
            column: options.get(column, "") for tried in METHODS.values() for column in tried
        }
        for seed in seeds:
            found = verify(data, classes, options, seed)
            rows.append({"method": name, "seed": seed, **columns, **found, **harness.machine()})
            print(rows[-1], flush=True)
        harness.write_csv(output, rows)


# Steps


class PlainLayer(keras.layers.Layer):
    """CosFace as users of Keras write it: all logits, and the margin in a one-hot target."""

    def build(self, shape: Any) -> None:
        constraint = keras.constraints.UnitNorm(axis=1)
        self.kernel = self.add_weight(
            shape=(CLASSES, STEP_WIDTH), initializer="glorot_uniform", constraint=constraint
        )

    def call(self, h: tf.Tensor) -> tf.Tensor:
        unit = tf.math.l2_normalize(tf.convert_to_tensor(self.kernel), axis=1)
        return tf.matmul(tf.math.l2_normalize(h, axis=1), unit, transpose_b=True)


def plain_loss(labels: tf.Tensor, cosines: tf.Tensor) -> tf.Tensor:
    labels = tf.cast(labels, tf.int64)
    logits = 64.0 * (cosines - MARGIN * tf.one_hot(labels, CLASSES))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def step_of(name: str) -> Callable[[], Any]:
    """Returns a step of `fit` of a method."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEP_BATCH, STEP_WIDTH)).astype("float32")
    y = rng.integers(0, CLASSES, STEP_BATCH)
    rate, loss = tlo.optimizers.RowSGD(0.1), SoftmaxCrossentropy(cosine_margin=MARGIN)
    if name == "Keras layer":
        head, loss = PlainLayer(), plain_loss
    elif name == "ExactSoftmaxHead":
        head = tlo.heads.ExactSoftmaxHead(CLASSES, rate, backward="all", cosine_scale=64.0)
    else:
        sampler = tlo.samplers.Uniform(int(SHARE * CLASSES))
        head = tlo.heads.SampledHead(CLASSES, sampler, rate, cosine_scale=64.0)
        loss = ActiveSetSoftmax(cosine_margin=MARGIN)
    trunk = keras.layers.Dense(STEP_WIDTH)
    model = keras.Sequential([keras.Input([STEP_WIDTH]), trunk, head])
    model.compile(keras.optimizers.SGD(0.1), loss)
    return lambda: model.train_on_batch(x, y)


STEPS = ("Keras layer", "ExactSoftmaxHead", "Partial FC")


def peak_of(name: str) -> None:
    step = step_of(name)
    step()
    step()
    print(harness.peak_of_process_mib())


def steps(output: Any) -> None:
    peaks = {name: float(harness.in_child("peak", "--method", name)) for name in STEPS}
    seconds = harness.alternate({name: step_of(name) for name in STEPS}, repeats=3)
    rows = [
        {
            "method": name,
            "classes": CLASSES,
            "width": STEP_WIDTH,
            "batch": STEP_BATCH,
            "classes_a_step": int(SHARE * CLASSES) if name == "Partial FC" else CLASSES,
            "seconds": round(seconds[name], 3),
            "times_less": round(seconds["Keras layer"] / seconds[name], 2),
            "peak_mib": round(peaks[name]),
        }
        for name in STEPS
    ]
    for row in rows:
        print(row, flush=True)
    harness.write_csv(output, [row | harness.machine() for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["verification", "steps", "peak"])
    parser.add_argument("--method", choices=STEPS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    if arguments.what == "peak":
        return peak_of(arguments.method)
    output = harness.RESULTS / f"margins_{arguments.what}.csv"
    if arguments.what == "verification":
        return verification(output, arguments.seeds)
    return steps(output)


if __name__ == "__main__":
    main()
