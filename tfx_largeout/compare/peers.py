# SPDX-License-Identifier: Apache-2.0
"""Alternatives to a network: other packages, with their defaults.

All get log TF-IDF features with rows of norm 1, independent of the heads' features, and are timed
separately.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfx_largeout.compare.data import sizes
from tfx_largeout.compare.results import CurvePoint

if TYPE_CHECKING:  # it takes longer to import than the rest
    from tfx_largeout.datasets import SparseExamples

K, _CUTOFFS = 5, (1, 3, 5)
_NEIGHBORS, _TEMPERATURE, _ROWS = 100, 0.1, 256
_MOST_PAIRS = 5 * 10**9  # compared training and test examples, in a minute


class Peer(NamedTuple):
    """A method to compare with.

    `train(examples)` returns `predict(examples)`, which returns the K best classes of each example,
    `[N, K]`, padded with -1.
    """

    package: str  # the required package; empty if none
    train: Callable[[SparseExamples], Callable[[SparseExamples], np.ndarray]]

    @property
    def installed(self) -> bool:
        """Whether its package is installed."""
        return not self.package or importlib.util.find_spec(self.package) is not None

    @property
    def description(self) -> str:
        """The package and its version."""
        return f"{self.package} {metadata.version(self.package)}" if self.package else ""


def train_peer(
    name: str, train: SparseExamples, test: SparseExamples, send: Callable[..., None]
) -> None:
    """Trains a peer, and sends events, as `training.train` does for a head."""
    from tfx_largeout.datasets import tf_idf

    peer = PEERS[name]
    train, test = tf_idf(train, test, log=True)
    about = f"{peer.description}, by its defaults,"
    if not peer.package:
        test = test.take(np.arange(min(len(test), max(1, _MOST_PAIRS // len(train)))))
        about = f"labels of the 100 nearest training examples, of {len(test):,} test examples,"
    data = sizes(train, test)
    send(stage="training", implementation=peer.description, data=data)
    start = time.perf_counter()
    predict = peer.train(train)
    seconds = time.perf_counter() - start
    point = CurvePoint(0, 0.0, seconds, None, *precision(predict(test), test).values())
    note = f"{name}: {about} {seconds:.1f} s of training, on log TF-IDF features."
    send(point=dataclasses.asdict(point), seconds=seconds, note=note)
    send(status="done")


def precision(ids: np.ndarray, examples: SparseExamples) -> dict[int, float]:
    """Returns P@1, P@3 and P@5 of the best classes of each example, `[N, 5]`."""
    splits, labels = examples.label_splits, examples.label_ids
    hits = np.stack([np.isin(row, labels[splits[i] : splits[i + 1]]) for i, row in enumerate(ids)])
    return {k: float(hits[:, :k].mean()) for k in _CUTOFFS}


def omikuji(train: SparseExamples) -> Callable[[SparseExamples], np.ndarray]:
    """Parabel, three trees."""
    import omikuji as package

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.txt"
        # omikuji raises an error if an example has no features.
        _write(train.take(np.flatnonzero(np.diff(train.feature_splits))), file)
        with _quiet_stderr():
            model = package.Model.train_on_data(
                str(file), package.Model.default_hyper_param(), len(os.sched_getaffinity(0))
            )

    def best(features: list[tuple[int, float]]) -> list[int]:
        return [label for label, _ in model.predict(features, top_k=K)]

    return lambda test: _rows(best(_pairs(test, i)) for i in range(len(test)))


def napkinxc(train: SparseExamples) -> Callable[[SparseExamples], np.ndarray]:
    """A probabilistic label tree."""
    from napkinxc.models import PLT
    from scipy.sparse import csr_matrix

    def features(e: SparseExamples) -> Any:
        parts = e.feature_values, e.feature_ids, e.feature_splits
        return csr_matrix(parts, shape=(len(e), e.num_features))

    labels = np.split(train.label_ids, train.label_splits[1:-1])
    folder = tempfile.TemporaryDirectory()
    model = PLT(folder.name, threads=len(os.sched_getaffinity(0)))
    with _quiet_stderr():
        model.fit(features(train), [row.tolist() for row in labels])

    def predict(test: SparseExamples) -> np.ndarray:
        with folder, _quiet_stderr():
            return _rows(model.predict(features(test), top_k=K))

    return predict


def tf_idf_neighbors(train: SparseExamples) -> Callable[[SparseExamples], np.ndarray]:
    """The labels of the 100 nearest examples, weighted by exp(cosine / 0.1), without training."""
    import tensorflow as tf

    from tfx_largeout.models.example_vectors import nearest, shares, stored_arrays

    row = np.repeat(np.arange(len(train)), np.diff(train.feature_splits))
    places = np.stack([row, train.feature_ids], axis=1)
    features = tf.SparseTensor(places, train.feature_values, [len(train), train.num_features])
    stored = stored_arrays("x", [features])
    number = min(_NEIGHBORS, len(train))

    def predict(test: SparseExamples) -> np.ndarray:
        found = []
        for features, _ in test.dataset(_ROWS):
            cosines, near = nearest("x", stored, features, len(train), number)
            weights = shares(cosines, _TEMPERATURE).numpy()
            found += [_best_labels(train, *row) for row in zip(near.numpy(), weights, strict=True)]
        return _rows(found)

    return predict


PEERS = {
    "omikuji": Peer("omikuji", omikuji),
    "napkinxc": Peer("napkinxc", napkinxc),
    "tf_idf_neighbors": Peer("", tf_idf_neighbors),
}


def _best_labels(train: SparseExamples, near: np.ndarray, shares: np.ndarray) -> np.ndarray:
    splits, near, shares = train.label_splits, near[shares > 0], shares[shares > 0]
    if not len(near):
        return near
    labels = [train.label_ids[splits[i] : splits[i + 1]] for i in near]
    classes, place = np.unique(np.concatenate(labels), return_inverse=True)
    scores = np.bincount(place, np.repeat(shares, [len(row) for row in labels]))
    return classes[np.argsort(-scores, kind="stable")[:K]]


def _rows(found: Any) -> np.ndarray:
    ids = [np.asarray(row, np.int64)[:K] for row in found]
    return np.stack([np.pad(row, [0, K - len(row)], constant_values=-1) for row in ids])


def _pairs(examples: SparseExamples, i: int) -> list[tuple[int, float]]:
    row = slice(*examples.feature_splits[i : i + 2])
    ids, values = examples.feature_ids[row], examples.feature_values[row]
    return list(zip(ids.tolist(), values.tolist(), strict=True))


def _write(examples: SparseExamples, file: Path) -> None:
    """Writes examples in the format of the extreme classification repository."""
    splits, labels = examples.label_splits, examples.label_ids
    with file.open("w") as lines:
        lines.write(f"{len(examples)} {examples.num_features} {examples.num_labels}\n")
        for i in range(len(examples)):
            words = " ".join(f"{feature}:{value:.6g}" for feature, value in _pairs(examples, i))
            lines.write(",".join(map(str, labels[splits[i] : splits[i + 1]])) + f" {words}\n")


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Hides output of native code on standard error."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
