# SPDX-License-Identifier: Apache-2.0
"""The ten best classes by a hash index, against the exact ten, on trained weights.

The claim: at 100,000 to 4,000,000 classes, ranking only the classes that an index of inner products
finds is faster than ranking all classes. Measured: how much faster, and how many of the exact ten
are found. For comparison in the same run: faiss (inverted lists) and, at 100,000 classes, hnswlib
(a graph), if they are installed; they search for (h, 1) among the (w, b) by inner product.

    pip install faiss-cpu hnswlib                            # optional
    python benchmarks/index_top_k.py --classes 100000        # or 1000000, 4000000: 4 minutes
    python benchmarks/index_top_k.py --quick                 # small, nothing is written

The weights are trained on a stream of generated examples. An example has three labels, drawn by
Zipf's law. A class has four features, by a hash of its id; an example has the features of its
labels, and four random ones. The trunk sums a vector per feature; the head trains with log-uniform
candidates. Run it with nothing else on the machine: each method takes turns with the exact one;
trust the ratio.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # faiss's threads must not spin while ours run

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.indexes import DWTAHash, HashIndex, SimHash, WTAHash
from tfx_largeout.indexes.hash_family import HashFamily

try:
    import faiss
except ImportError:
    faiss = None
try:
    import hnswlib
except ImportError:
    hnswlib = None

WIDTH, FEATURES, LABELS, PER_CLASS, NOISE = 64, 2**16, 3, 4, 4
TRAIN_BATCH, STEPS, CANDIDATES = 1024, 1500, 1000
BEST, QUERIES, TEST_QUERIES, THREADS = 10, 256, 1024, 2
MOST_FOR_GRAPH = 100_000  # classes: building takes a minute a million and core, at least


Search = Callable[[tf.Tensor], np.ndarray]


class Trained(NamedTuple):
    """A head, and the hidden activations of test examples."""

    head: tlo.heads.SampledHead
    hidden: tf.Tensor
    labels: tf.Tensor


class Searcher(NamedTuple):
    """Returns the ids `[N, 10]` of the best classes; and its memory besides W, in bytes."""

    search: Search
    size: float


class Reference(NamedTuple):
    """The exact search, and its results for all test examples."""

    search: Search
    best: np.ndarray


class Method(NamedTuple):
    """A way to find the best classes. One build serves several searchers."""

    name: str
    build: Callable[[Trained], Any]
    searchers: dict[str, Callable[[Any, Trained], Searcher]]


def batch_of(classes: int, step: tf.Tensor, size: int) -> tuple[tf.SparseTensor, tf.Tensor]:
    """Returns features and labels of made-up examples."""
    seeds = tf.random.split(tf.stack([tf.constant(1, tf.int64), step]), 2)
    uniform = tf.random.stateless_uniform([size, LABELS], seeds[0], dtype=tf.float64)
    labels = tf.cast(tf.exp(uniform * math.log(classes + 1)), tf.int64) - 1
    labels = tf.minimum(labels, classes - 1)
    mixed = (labels[..., tf.newaxis] * PER_CLASS + tf.range(PER_CLASS, dtype=tf.int64)) * 0x9E3779B1
    of_labels = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 17)) % FEATURES
    noise = tf.random.stateless_uniform([size, NOISE], seeds[1], 0, FEATURES, tf.int64)
    features = tf.concat([tf.reshape(of_labels, [size, LABELS * PER_CLASS]), noise], axis=1)
    rows = tf.repeat(tf.range(size, dtype=tf.int64), features.shape[1])
    places = tf.stack([rows, tf.reshape(features, [-1])], axis=1)
    ones = tf.ones([size * features.shape[1]])
    return tf.SparseTensor(places, ones, [size, FEATURES]), labels


def train(classes: int, steps: int) -> Trained:
    """Trains trunk and head on the stream."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input([FEATURES], sparse=True)
    trunk = tlo.layers.SparseDense(WIDTH, activation="relu")
    head = tlo.heads.SampledHead(
        classes,
        tlo.samplers.LogUniform(CANDIDATES),
        tlo.optimizers.RowAdagrad(0.2),
        seed=0,
    )
    model = keras.Model(inputs, head(trunk(inputs)))
    model.compile(keras.optimizers.Adagrad(0.2), loss=tlo.losses.ComplementarySum())
    batches = tf.data.Dataset.range(steps).map(lambda step: batch_of(classes, step, TRAIN_BATCH))
    model.fit(batches, verbose=0)
    features, labels = batch_of(classes, tf.constant(steps, tf.int64), TEST_QUERIES)
    return Trained(head, trunk(features), labels)


def exact_search(trained: Trained) -> Reference:
    """Searches among all classes, streamed."""
    run = tf.function(lambda hidden: trained.head.top_k(hidden, BEST).ids, autograph=False)

    def search(hidden: tf.Tensor) -> np.ndarray:
        return np.asarray(run(hidden).numpy())

    return Reference(search, all_of(search, trained))


def hash_method(
    family: HashFamily,
    hashes: int,
    tables: int,
    found: tuple[int, ...],
    length_ranges: int | None = None,
) -> Method:
    """Returns a hash index that finds a limited number of classes, by angle without ranges."""
    similarity: dict[str, Any] = {}
    if length_ranges is not None:
        similarity = {"similarity": "inner_product", "length_ranges": length_ranges}

    def build(trained: Trained) -> HashIndex:
        index = HashIndex(family, hashes, tables, **similarity)
        index.rebuild(trained.head.kernel, trained.head.bias)
        return index

    def searcher(most: int, index: HashIndex, trained: Trained) -> Searcher:
        layer = tlo.TopK(trained.head, BEST, index=index, num_found=most)
        run = tf.function(lambda hidden: layer(hidden)[1], autograph=False)
        size = sum(math.prod(weight.shape) * 4 for weight in index.weights)
        return Searcher(lambda hidden: run(hidden).numpy(), size)

    name = f"{type(family).__name__}({getattr(family, 'window', '')})"
    if length_ranges is not None:
        name += f" inner product, {length_ranges} ranges"
    parameters = f"K = {hashes} L = {tables} num_found = "
    searchers = {f"{parameters}{most}": functools.partial(searcher, most) for most in found}
    return Method(name, build, searchers)


def faiss_method(lists: int, probes: tuple[int, ...], metric: str) -> Method:
    """Returns faiss's inverted lists: the classes around each centroid.

    Args:
        lists: The number of lists.
        probes: The number of searched lists.
        metric: `"inner product"`; or `"L2"`: distances between (w, b, sqrt(R^2 - |w|^2 - b^2)),
            with R the greatest length, and (h, 1, 0), which have the order of the logits.
    """
    search_rows = rows_and_biases if metric == "inner product" else rows_of_one_length
    zeros = search_rows is rows_of_one_length

    def build(trained: Trained) -> Any:
        faiss.omp_set_num_threads(THREADS)
        vectors = search_rows(trained)
        number = faiss.METRIC_L2 if zeros else faiss.METRIC_INNER_PRODUCT
        index = faiss.index_factory(vectors.shape[1], f"IVF{lists},Flat", number)
        index.cp.max_points_per_centroid = 64  # of the sample for k-means; 4 times as fast as 256
        index.train(vectors)
        index.add(vectors)
        return index

    def searcher(nprobe: int, index: Any, trained: Trained) -> Searcher:
        def search(hidden: tf.Tensor) -> np.ndarray:
            index.nprobe = nprobe
            return np.asarray(index.search(queries_of(hidden, int(zeros)), BEST)[1])

        return Searcher(search, index.ntotal * (index.code_size + 8) + 4 * lists * index.d)

    return Method(
        f"faiss IndexIVFFlat {metric}",
        build,
        {f"nlist = {lists} nprobe = {n}": functools.partial(searcher, n) for n in probes},
    )


def graph_method(links: int, construction: int, efs: tuple[int, ...]) -> Method:
    """Returns hnswlib's graph."""

    def build(trained: Trained) -> Any:
        vectors = rows_and_biases(trained)
        index = hnswlib.Index("ip", vectors.shape[1])
        index.init_index(len(vectors), M=links, ef_construction=construction, random_seed=0)
        index.add_items(vectors, num_threads=THREADS)
        return index

    def searcher(ef: int, index: Any, trained: Trained) -> Searcher:
        def search(hidden: tf.Tensor) -> np.ndarray:
            index.set_ef(ef)
            labels = index.knn_query(queries_of(hidden), BEST, num_threads=THREADS)[0]
            return np.asarray(labels).astype(np.int64)

        return Searcher(search, index.index_file_size())

    parameters = f"M = {links} ef_construction = {construction} ef = "
    return Method(
        "hnswlib",
        build,
        {f"{parameters}{ef}": functools.partial(searcher, ef) for ef in efs},
    )


def rows_and_biases(trained: Trained) -> np.ndarray:
    """Returns (w, b) of all classes."""
    kernel, bias = trained.head.kernel.numpy(), trained.head.bias.numpy()
    return np.concatenate([kernel, bias[:, np.newaxis]], axis=1)


def rows_of_one_length(trained: Trained) -> np.ndarray:
    """Returns (w, b, sqrt(R^2 - |w|^2 - b^2)) of all classes, R being the greatest length."""
    vectors = rows_and_biases(trained)
    squares = (vectors**2).sum(axis=1, keepdims=True)
    return np.concatenate([vectors, np.sqrt(squares.max() - squares)], axis=1)


def queries_of(hidden: tf.Tensor, zeros: int = 0) -> np.ndarray:
    """Returns (h, 1), padded with zeros."""
    tail = [[1.0] + [0.0] * zeros] * len(hidden)
    return np.concatenate([hidden.numpy(), np.array(tail, np.float32)], axis=1)


def longest_method(count: int) -> Method:
    """Returns the search among the longest rows, the same for all queries: no index at all."""

    def build(trained: Trained) -> tuple[tf.Tensor, tf.Tensor]:
        vectors = rows_and_biases(trained)
        ids = np.argsort(-(vectors**2).sum(axis=1))[:count]
        return tf.constant(ids), tf.constant(vectors[ids])

    def searcher(built: tuple[tf.Tensor, tf.Tensor], trained: Trained) -> Searcher:
        ids, vectors = built

        def run(hidden: tf.Tensor) -> tf.Tensor:
            logits = tf.matmul(hidden, vectors[:, :-1], transpose_b=True) + vectors[:, -1]
            return tf.gather(ids, tf.math.top_k(logits, BEST).indices)

        run = tf.function(run, autograph=False)
        return Searcher(lambda hidden: run(hidden).numpy(), count * (WIDTH + 1) * 4 + count * 8)

    return Method("longest rows alone", build, {f"num = {count}": searcher})


def methods(classes: int) -> Iterator[Method]:
    """Yields the compared methods.

    By angles and ranks, uniform buckets would hold about 30 classes. By inner products, the few
    long rows have separate buckets, for which few hashes are enough.
    """
    bits = round(math.log2(classes / 30))
    words = round(bits / 3)
    for family in (DWTAHash(8), WTAHash(8)):
        yield hash_method(family, words, 50, (1000,))
    yield hash_method(SimHash(), bits, 50, (1000,))
    for hashes, ranges in ((5, 4), (5, 8), (7, 4)):
        yield hash_method(SimHash(), hashes, 50, (500, 1000, 4000), ranges)
    yield longest_method(4000)
    lists = round(2 * math.sqrt(classes))
    if faiss is None:
        print("faiss is not installed: no rows for it")
    else:
        yield faiss_method(lists, (8, 64), "inner product")
        yield faiss_method(lists, (1, 8), "L2")
    if classes > MOST_FOR_GRAPH:
        return
    if hnswlib is None:
        print("hnswlib is not installed: no rows for it")
    else:
        yield graph_method(16, 100, (32, 256))


def rows_of(
    method: Method, trained: Trained, exact: Reference, repeats: int
) -> list[dict[str, Any]]:
    """Returns a row for each searcher of a method."""
    begin = time.perf_counter()
    built = method.build(trained)
    seconds, rows = time.perf_counter() - begin, []
    few = trained.hidden[:QUERIES]
    for parameters, searcher_of in method.searchers.items():
        searcher = searcher_of(built, trained)
        times = harness.alternate(
            {
                "method": functools.partial(searcher.search, few),
                "exact": functools.partial(exact.search, few),
            },
            repeats,
        )
        ids = all_of(searcher.search, trained)
        rows.append(
            {
                "classes": trained.head.num_classes,
                "method": method.name,
                "parameters": parameters,
                "build_s": round(seconds, 2),
                "ms_of_256": round(1e3 * times["method"], 2),
                "exact_ms_of_256": round(1e3 * times["exact"], 1),
                "ratio": round(times["exact"] / times["method"], 1),
                "recall_at_10": round(recall(exact.best, ids), 4),
                "p_at_1": round(precision(ids, trained.labels), 4),
                "bytes_a_class": round(searcher.size / trained.head.num_classes, 1),
            }
        )
        print(rows[-1], flush=True)
    return rows


def all_of(search: Search, trained: Trained) -> np.ndarray:
    """Returns the ids for all test examples."""
    parts = tf.split(trained.hidden, TEST_QUERIES // QUERIES)
    return np.concatenate([search(part) for part in parts])


def recall(best: np.ndarray, ids: np.ndarray) -> float:
    """Returns the share of the best ids that are among others."""
    return float(np.mean([np.isin(b, row).mean() for b, row in zip(best, ids, strict=True)]))


def precision(ids: np.ndarray, labels: tf.Tensor) -> float:
    """Returns the share of examples whose first id is a label."""
    return float((ids[:, :1] == labels.numpy()).any(axis=1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=100_000, help="one number a process")
    parser.add_argument("--quick", action="store_true", help="small; nothing is written")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    classes, steps, repeats = arguments.classes, STEPS, arguments.repeats
    if arguments.quick:
        classes, steps, repeats = 5_000, 100, 1
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    begin = time.perf_counter()
    trained = train(classes, steps)
    exact = exact_search(trained)
    facts = {
        "exact_p_at_1": round(precision(exact.best, trained.labels), 4),
        "most_frequent_p_at_1": round(precision(np.zeros_like(exact.best), trained.labels), 4),
    }
    print(facts, f"trained in {time.perf_counter() - begin:.0f} s", flush=True)
    rows = []
    for method in methods(classes):
        for row in rows_of(method, trained, exact, repeats):
            rows.append({**row, **facts, **harness.machine()})
        gc.collect()  # an index is in a cycle with the function that asks it
    if not arguments.quick:
        harness.write_csv(harness.RESULTS / f"index_top_k_{classes}.csv", rows)


if __name__ == "__main__":
    main()
