# SPDX-License-Identifier: Apache-2.0
"""The recall of a hash index on trained weights: the shipped WordNet data, 139,536 classes.

A head is trained with log-uniform candidates and the complementary sum for a few epochs. Then each
index is built on its W, and queried with the hidden activations of 512 test examples. Measured: the
share of the ten classes with the greatest logits that is found, and the share of the partition
function Z.

    python benchmarks/index_recall.py            # two minutes
    python benchmarks/index_recall.py --quick    # one epoch, nothing is written
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout import datasets
from tfx_largeout.indexes import DWTAHash, HashIndex, SimHash, WTAHash
from tfx_largeout.labels import Labels, normalize_labels

BATCH, WIDTH, TABLES, BEST = 512, 128, 50, 10

Make = Callable[[], HashIndex]
INDEXES: dict[str, Make] = {
    "DWTAHash(8), K = 3": lambda: HashIndex(DWTAHash(8), 3, TABLES),
    "DWTAHash(8), K = 4": lambda: HashIndex(DWTAHash(8), 4, TABLES),
    "DWTAHash(8), K = 6": lambda: HashIndex(DWTAHash(8), 6, TABLES),
    "WTAHash(16), K = 3, L = 200": lambda: HashIndex(WTAHash(16), 3, 200),
    "SimHash(), K = 9": lambda: HashIndex(SimHash(), 9, TABLES),
    "SimHash(), K = 12": lambda: HashIndex(SimHash(), 12, TABLES),
    "SimHash(), K = 5, inner product": lambda: _inner_product(5),
    "SimHash(), K = 7, inner product": lambda: _inner_product(7),
    "SimHash(), K = 9, inner product": lambda: _inner_product(9),
    "SimHash(), K = 7, inner product, one range": lambda: _inner_product(7, 1),
    "SimHash(), K = 7, inner product, 8 ranges": lambda: _inner_product(7, 8),
}


class Trained(NamedTuple):
    """Weights, and the hidden activations and labels of test examples."""

    kernel: tf.Variable
    bias: tf.Variable
    hidden: tf.Tensor
    labels: Labels


def _inner_product(hashes: int, ranges: int = 4) -> HashIndex:
    return HashIndex(SimHash(), hashes, TABLES, similarity="inner_product", length_ranges=ranges)


def train(epochs: int) -> Trained:
    """Trains a head on WordNet."""
    keras.utils.set_random_seed(0)
    examples, test = datasets.load_wordnet("hyper")
    inputs = keras.Input([examples.num_features], sparse=True)
    trunk = tlo.layers.SparseDense(WIDTH, activation="relu")
    head = tlo.heads.SampledHead(
        examples.num_labels, tlo.samplers.LogUniform(1000), tlo.optimizers.RowAdam(0.005), seed=0
    )
    model = keras.Model(inputs, head(trunk(inputs)))
    model.compile(keras.optimizers.Adam(2e-3), loss=tlo.losses.ComplementarySum())
    batches = examples.dataset(BATCH, shuffle=True, seed=0, drop_remainder=True)
    model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
    features, labels = next(iter(test.dataset(BATCH)))
    labels = normalize_labels(labels, examples.num_labels)
    return Trained(head.kernel.value, head.bias.value, trunk(features), labels)


def rows_of(name: str, make: Make, trained: Trained, logits: np.ndarray) -> list[dict[str, Any]]:
    """Returns a row for candidates per example, and for shared ones."""
    index = make()
    index.rebuild(trained.kernel, trained.bias)
    best = np.argpartition(-logits, BEST, axis=1)[:, :BEST]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    queries, rows = trained.hidden[:, tf.newaxis], []
    for per_example in (True, False):
        ids = index.candidates(queries, 1000, tf.constant([1, 2]), per_example).numpy()
        ids = np.broadcast_to(ids, (len(logits), 1000))
        found = [row[row >= 0] for row in ids]
        rows.append(
            {
                "index": name,
                "candidates": "own" if per_example else "shared",
                "found": round(float(np.mean([len(row) for row in found])), 1),
                "recall_at_10": round(
                    _mean(np.isin(b, row).mean() for b, row in zip(best, found, strict=True)), 4
                ),
                "share_of_z": round(
                    _mean(q[row].sum() for q, row in zip(p, found, strict=True)), 4
                ),
                **harness.machine(),
            }
        )
        print({key: rows[-1][key] for key in list(rows[-1])[:5]})
    return rows


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one epoch; nothing is written")
    quick = parser.parse_args().quick
    trained = train(1 if quick else 8)
    logits = tf.matmul(trained.hidden, trained.kernel, transpose_b=True) + trained.bias
    rows = []
    for name, make in INDEXES.items():
        rows += rows_of(name, make, trained, logits.numpy())
    if not quick:
        harness.write_csv(harness.RESULTS / "index_recall.csv", rows)


if __name__ == "__main__":
    main()
