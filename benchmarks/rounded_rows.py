# SPDX-License-Identifier: Apache-2.0
"""Rows of W stored in fewer bytes for search: recall, bytes per class and requests per second.

    pip install faiss-cpu                                   # optional, for product codes
    python benchmarks/rounded_rows.py                       # WordNet's hyper; 4 epochs of training
    python benchmarks/rounded_rows.py --classes 1000000     # random rows; results/rounded_rows.csv

All classes are searched. `tlo.export` with rows of each kind, loaded by `tlo.serving.load`; with
`rescore` the best 40 are scored with float32 rows; a server that maps these reads only the 40, so
that the rest does not count as memory. `RowBounds` in a process with this package. From faiss: rows
of 8 bits, and product codes of D / 4 parts of 8 bits (a byte per four numbers), alone and with the
best 40 scored with exact rows. Methods take turns; the best round counts, as the machine may be
busy.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import harness
import keras
import numpy as np
import tensorflow as tf
from serving import Trained, train_on_wordnet

import tfx_largeout as tlo

try:
    import faiss
except ImportError:
    faiss = None

BEST, AGAIN, QUERIES, THREADS = 10, 40, 256, 2
BATCHES = {1: 40, 64: 4}  # requests a round
ROUNDS = 5


class Method(NamedTuple):
    name: str
    bytes_a_class: float  # that each request reads, or may
    search: Callable[[tf.Tensor], np.ndarray]


def random_rows(classes: int) -> Trained:
    """Returns a head of normal rows, for which there is nothing to gain by structure."""
    rng, width = np.random.default_rng(0), 128
    head = tlo.heads.DenseHead(classes)
    head.build((None, width))
    head.kernel.assign(rng.standard_normal((classes, width), np.float32))
    hidden = tf.constant(rng.standard_normal((QUERIES, width), np.float32))
    return Trained(head, hidden, tf.zeros([0]))


def exports(trained: Trained, folder: Path) -> Iterator[Method]:
    head, width = trained.head, int(trained.hidden.shape[1])
    model = keras.Sequential([keras.Input([width]), head])
    kinds = {"float32": 4 * width, "bfloat16": 2 * width, "int8": width + 4}
    for rows, rescore in (*((rows, False) for rows in kinds), ("int8", True), ("bfloat16", True)):
        path = folder / f"{rows} {rescore}"
        tlo.export(model, path, BEST, rows=rows, rescore=rescore)
        serve = tlo.serving.load(path).signatures["serving_default"]
        name = f"tlo.export, {rows}" + ", rescore" * rescore
        yield Method(
            name, kinds[rows] + 4, lambda hidden, serve=serve: serve(inputs=hidden)["ids"].numpy()
        )


def bounds(trained: Trained) -> Method:
    head, index = trained.head, tlo.indexes.RowBounds()
    index.rebuild(head.kernel, head.bias)
    layer = tlo.TopK(head, BEST, index=index)
    search = tf.function(lambda hidden: layer(hidden)[1], autograph=False)
    size = sum(weight.numpy().nbytes for weight in index.weights) / head.num_classes
    return Method("tlo.TopK, RowBounds", size, lambda hidden: search(hidden).numpy())


def of_faiss(trained: Trained) -> Iterator[Method]:
    if faiss is None:
        print("faiss is not installed: no rows for it")
        return
    faiss.omp_set_num_threads(THREADS)
    head = trained.head
    bias = head.bias.numpy().astype(np.float32)
    vectors = np.concatenate([head.kernel.numpy(), bias[:, np.newaxis]], axis=1)
    vectors = np.pad(vectors, [(0, 0), (0, -vectors.shape[1] % 16)])  # else it has no vector code
    parts, width = vectors.shape[1] // 4, vectors.shape[1]
    for name, description in (
        ("faiss, 8 bits", "SQ8"),
        ("faiss, product codes", f"PQ{parts}x8"),
        ("faiss, product codes, exact rows", f"PQ{parts}x8,RFlat"),
        ("faiss, product codes of 4 bits, exact rows", f"PQ{parts}x4fs,RFlat"),
    ):
        index = faiss.index_factory(width, description, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors[:: max(len(vectors) // 16_384, 1)])
        index.add(vectors)
        codes = index
        if "RFlat" in description:
            codes, index.k_factor = faiss.downcast_index(index.base_index), AGAIN / BEST

        def search(hidden: tf.Tensor, index: Any = index) -> np.ndarray:
            queries = np.ones((len(hidden), 1), np.float32)
            queries = np.concatenate([hidden.numpy(), queries], axis=1)
            queries = np.pad(queries, [(0, 0), (0, width - queries.shape[1])])
            return index.search(queries, BEST)[1]

        yield Method(name, codes.code_size, search)


def measured(methods: list[Method], hidden: tf.Tensor, batch: int, rounds: int) -> list[float]:
    """Returns the requests per second of each, in the best of some rounds."""
    best = [0.0] * len(methods)
    requests = BATCHES[batch]
    for turn in range(-1, rounds):
        for number, method in enumerate(methods):
            begin = time.perf_counter()
            for request in range(requests if turn >= 0 else 1):
                first = request * batch % (QUERIES - batch + 1)
                method.search(hidden[first : first + batch])
            if turn >= 0:
                best[number] = max(best[number], requests / (time.perf_counter() - begin))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, help="of random rows")
    parser.add_argument("--epochs", type=int, default=4, help="on WordNet")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="nothing is written")
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    trained = (
        train_on_wordnet(given.epochs) if given.classes is None else random_rows(given.classes)
    )
    hidden = trained.hidden[:QUERIES]
    exact = tlo.TopK(trained.head, BEST)(hidden)[1].numpy()
    with TemporaryDirectory() as folder:
        methods = [*exports(trained, Path(folder)), bounds(trained), *of_faiss(trained)]
        rates = {batch: measured(methods, hidden, batch, given.rounds) for batch in BATCHES}
        for number, method in enumerate(methods):
            found = method.search(hidden)
            recall = np.mean([np.isin(a, b).mean() for a, b in zip(exact, found, strict=True)])
            row = {
                "weights": "WordNet" if given.classes is None else "random",
                "classes": trained.head.num_classes,
                "width": int(hidden.shape[1]),
                "method": method.name,
                "bytes_a_class": round(method.bytes_a_class, 1),
                "recall_at_10": round(float(recall), 4),
                **{f"requests_a_second_of_{b}": round(rates[b][number], 1) for b in BATCHES},
                **harness.machine(),
            }
            print(list(row.values())[3:8], flush=True)
            if not given.quick:
                harness.append_row(harness.RESULTS / "rounded_rows.csv", row)


if __name__ == "__main__":
    main()
