# SPDX-License-Identifier: Apache-2.0
"""Requests to exported models: the ten best classes of one example, and of 64.

Measured: time, memory and recall of requests to an exact export and to exports with lists or hash
tables, compared with `keras.Model.export` of a Dense layer with `top_k`; and `TopK` in a process
with this package. docs/guides/serving.md has the results. For comparison in the same run, if
installed: faiss (inverted lists) and hnswlib (a graph), which search for (h, 1) among the (w, b).
All start from the hidden activations of test examples.

    pip install "tfx_largeout[peers]"                       # optional: faiss-cpu and hnswlib
    python benchmarks/serving.py                            # WordNet, 139,536 classes: 5 minutes
    python benchmarks/serving.py --classes 1000000          # a made-up stream: 10 minutes
    python benchmarks/serving.py --weights FILE.npz         # arrays w [C, D], b [C] and h [N, D]
    python benchmarks/serving.py --quick                    # small, nothing is written

Weights are trained, as in real servers. Methods take turns of ten requests, so that a busy machine
slows all of them alike, and each finds its own data in the caches, like a server with one model.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import harness
import index_top_k  # sets what faiss's threads need, before TensorFlow is imported
import keras
import numpy as np
import tensorflow as tf
from index_top_k import BEST, THREADS, Search, Trained, faiss_method, graph_method, recall

import tfx_largeout as tlo
from tfx_largeout.datasets import load_wordnet, tf_idf

WIDTH, CANDIDATES, TRAIN_BATCH, QUERIES = 128, 2000, 512, 1024
PEAK_BATCH = 512
REPEATS = {1: 300, 64: 60}  # examples per request: requests
TURN = 10  # requests
MOST_FOR_GRAPH = 200_000  # classes: building takes minutes per million
BASE = "keras export of Dense and top_k"
HASHES, TABLES, RANGES = 5, 50, 8  # of the hash index


class Method(NamedTuple):
    """A way to answer requests.

    Attributes:
        name: Its name.
        parameters: Its parameters.
        search: Returns ids.
        build_s: Seconds to create it.
        mb: Its size on disk, or in memory, in millions of bytes.
        peak_mib: The resident memory that a request of 512 adds; -1: not measured.
    """

    name: str
    parameters: str
    search: Search
    build_s: float
    mb: float
    peak_mib: float


class Best(keras.layers.Layer):
    """The ten largest of logits."""

    def call(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        scores, ids = tf.math.top_k(logits, BEST)
        return {"scores": scores, "ids": ids}


def train_on_wordnet(epochs: int) -> Trained:
    """Trains definitions of words, as bags of words, to name what they define."""
    train, test = tf_idf(*load_wordnet("hyper"))
    keras.utils.set_random_seed(0)
    head = tlo.heads.SampledHead(
        train.num_labels, tlo.samplers.Uniform(CANDIDATES), tlo.optimizers.RowAdam(4e-3), seed=0
    )
    trunk = tlo.layers.SparseDense(WIDTH, activation="relu")
    model = keras.Sequential([keras.Input((train.num_features,), sparse=True), trunk, head])
    model.compile(keras.optimizers.Adam(2e-3), loss=tlo.losses.SampledSoftmax())
    model.fit(train.dataset(TRAIN_BATCH, shuffle=True), epochs=epochs, shuffle=False, verbose=0)
    features, labels = next(iter(test.dataset(QUERIES)))
    return Trained(head, trunk(features), labels)


def load_weights(path: Path) -> Trained:
    """Returns a head with the weights of a file, and hidden activations."""
    arrays = np.load(path)
    if len(arrays["h"]) <= max(REPEATS):
        raise SystemExit(
            f"h must have more than {max(REPEATS)} rows, the most of a request; "
            f"got {len(arrays['h'])} in {path}"
        )
    head = tlo.heads.DenseHead(len(arrays["w"]))
    head.build((None, arrays["w"].shape[1]))
    head.kernel.assign(arrays["w"])
    head.bias.assign(arrays["b"])
    return Trained(head, tf.constant(arrays["h"][:QUERIES]), tf.zeros([0]))


def exports(trained: Trained, folder: Path) -> Iterator[Method]:
    """Yields Keras's export, and the exports of this package."""
    head = trained.head
    width = int(head.kernel.shape[1])
    inputs = keras.Input((width,))
    dense = keras.layers.Dense(head.num_classes)
    model = keras.Model(inputs, Best()(dense(inputs)))
    dense.set_weights([head.kernel.numpy().T, head.bias.numpy()])

    def write_by_keras(path: Path) -> None:
        model.export(path, verbose=False)

    yield exported(BASE, "", folder / "keras", width, write_by_keras)
    headed = keras.Sequential([keras.Input((width,)), head])
    lists = round(head.num_classes**0.5)
    for rows, rescore in (("float32", False), ("bfloat16", False), ("int8", False), ("int8", True)):
        write = functools.partial(tlo.export, headed, k=BEST, rows=rows, rescore=rescore)
        parameters = f"rows = {rows}" + (" rescore" if rescore else "")
        name = f"exact_{rows}_{rescore}"
        yield exported(
            "tlo.export, exact", parameters, folder / name, width, lambda p, w=write: w(folder=p)
        )
        for part in (64, 16, 4) if rows != "bfloat16" and not rescore else ():
            probed = max(lists // part, 1)
            parameters = f"rows = {rows} num_lists = {lists} num_probed = {probed}"
            write = functools.partial(
                tlo.export, headed, k=BEST, rows=rows, index="ivf", num_probed=probed
            )
            name = f"ivf_{rows}_{probed}"
            yield exported(
                "tlo.export, ivf", parameters, folder / name, width, lambda p, w=write: w(folder=p)
            )
    yield from hash_exports(headed, folder)


def hash_exports(headed: keras.Sequential, folder: Path) -> Iterator[Method]:
    """Yields exports with the tables of a hash index."""
    head = headed.layers[-1]
    index = tlo.indexes.HashIndex(
        tlo.indexes.SimHash(), HASHES, TABLES, similarity="inner_product", length_ranges=RANGES
    )
    index.rebuild(head.kernel, head.bias)
    for num_found, probed in ((1000, TABLES), (1000, TABLES // 5), (4000, TABLES)):
        num_found = min(num_found, head.num_classes)
        write = functools.partial(
            tlo.export, headed, k=BEST, index=index, num_found=num_found, num_probed=probed
        )
        parameters = f"K = {HASHES} ranges = {RANGES} num_found = {num_found} num_probed = {probed}"
        name = f"hash_{num_found}_{probed}"
        yield exported(
            "tlo.export, hash",
            parameters,
            folder / name,
            int(head.kernel.shape[1]),
            lambda p, w=write: w(folder=p),
        )


def in_process(trained: Trained, exact: Search) -> Iterator[Method]:
    """Yields methods in a process with this package: all classes, nothing exported."""
    yield Method("tlo.TopK in process, exact", "", exact, 0.0, 0.0, -1)
    yield with_index("tlo.TopK in process, bounds", "", tlo.indexes.RowBounds(), trained.head)
    lists = round(trained.head.num_classes**0.5)
    for part in (64, 16, 4):
        probed = max(lists // part, 1)
        index = tlo.indexes.InvertedFile(lists, probed)
        parameters = f"num_lists = {lists} num_probed = {probed}"
        yield with_index("tlo.TopK in process, lists", parameters, index, trained.head)
        yield without_graph(parameters, index, trained.head)


def with_index(name: str, parameters: str, index: Any, head: tlo.heads.Head) -> Method:
    """Builds an index, which `TopK` asks."""
    begin = time.perf_counter()
    index.rebuild(head.kernel, head.bias)
    seconds = time.perf_counter() - begin
    layer = tlo.TopK(head, BEST, index=index)
    run = tf.function(lambda hidden: layer(hidden)[1], autograph=False)
    size = sum(weight.numpy().nbytes for weight in index.weights) / 1e6
    return Method(name, parameters, lambda hidden: run(hidden).numpy(), seconds, size, -1)


def without_graph(parameters: str, index: Any, head: tlo.heads.Head) -> Method:
    """Asks an index itself, by a call of an op."""

    def search(hidden: tf.Tensor) -> np.ndarray:
        return index.top_k(hidden, head.kernel, head.bias, BEST).top_ids.numpy()

    return Method("InvertedFile.top_k, eager", parameters, search, 0.0, 0.0, -1)


def exported(
    name: str, parameters: str, path: Path, width: int, write: Callable[[Path], None]
) -> Method:
    """Writes a model, and loads it."""
    begin = time.perf_counter()
    write(path)
    seconds = time.perf_counter() - begin
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    peak = float(harness.in_child("--peak", str(path), str(width)))
    return Method(name, parameters, search_of(path), seconds, size / 1e6, peak)


def search_of(path: Path) -> Search:
    """Loads an exported model that takes h."""
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    (key,) = serve.structured_input_signature[1]
    return lambda hidden: np.asarray(serve(**{key: hidden})["ids"].numpy())


def peak_of_request(path: Path, width: int) -> float:
    """Returns the MiB that a request of 512 examples adds to the resident memory."""
    hidden = tf.random.stateless_normal([PEAK_BATCH, width], [0, 0])
    search = search_of(path)
    search(hidden[:1])
    return harness.peak_mib(lambda: search(hidden))


def peers(trained: Trained) -> Iterator[Method]:
    """Yields faiss and hnswlib, if installed."""
    classes = trained.head.num_classes
    lists = round(classes**0.5)
    made = []
    if index_top_k.faiss is None:
        print("faiss is not installed: no rows for it")
    else:
        made.append(faiss_method(lists, tuple(max(lists // part, 1) for part in (64, 16, 4)), "L2"))
    if index_top_k.hnswlib is None or classes > MOST_FOR_GRAPH:
        print("hnswlib is not installed, or there are too many classes: no rows for it")
    else:
        made.append(graph_method(16, 100, (32, 256)))
    for method in made:
        begin = time.perf_counter()
        built = method.build(trained)
        seconds = time.perf_counter() - begin
        for parameters, searcher_of in method.searchers.items():
            searcher = searcher_of(built, trained)
            yield Method(method.name, parameters, searcher.search, seconds, searcher.size / 1e6, -1)


def seconds_of_requests(
    methods: list[Method], hidden: tf.Tensor, batch: int, repeats: int
) -> list[list[float]]:
    """Returns the seconds of each request to each method, which take turns of ten requests."""
    seconds: list[list[float]] = [[] for _ in methods]
    count = len(hidden) - batch
    for turn in range(-1, repeats // TURN):  # the first one traces and allocates
        for own, method in zip(seconds, methods, strict=True):
            for number in range(TURN * turn, TURN * (turn + 1)):
                first = number * batch % count
                request = tf.identity(hidden[first : first + batch])
                begin = time.perf_counter()
                method.search(request)
                if turn >= 0:
                    own.append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, help="of a stream of made-up examples")
    parser.add_argument("--weights", type=Path, help="a file of trained weights")
    parser.add_argument("--epochs", type=int, default=16, help="on WordNet")
    parser.add_argument("--quick", action="store_true", help="small; nothing is written")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)  # in a separate process
    arguments = parser.parse_args()
    if arguments.peak is not None:
        print(peak_of_request(Path(arguments.peak[0]), int(arguments.peak[1])))
        return
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    if arguments.weights is not None:
        trained, source = load_weights(arguments.weights), arguments.weights.name
    elif arguments.quick:
        trained, source = index_top_k.train(5_000, 100), "made-up examples"
    elif arguments.classes is not None:
        trained, source = (
            index_top_k.train(arguments.classes, index_top_k.STEPS),
            "made-up examples",
        )
    else:
        trained, source = train_on_wordnet(arguments.epochs), "WordNet"
    exact = index_top_k.exact_search(trained)
    rows = []
    with TemporaryDirectory() as folder:
        methods = [
            *exports(trained, Path(folder)),
            *in_process(trained, exact.search),
            *peers(trained),
        ]
        recalls = [recall(exact.best, method.search(trained.hidden)) for method in methods]
        for batch, repeats in REPEATS.items():
            repeats = TURN if arguments.quick else repeats
            seconds = seconds_of_requests(methods, trained.hidden, batch, repeats)
            base = np.median(seconds[0])
            for method, own, share in zip(methods, seconds, recalls, strict=True):
                rows.append(
                    {
                        "weights": source,
                        "classes": trained.head.num_classes,
                        "width": int(trained.hidden.shape[1]),
                        "batch": batch,
                        "method": method.name,
                        "parameters": method.parameters,
                        "p50_ms": round(1e3 * float(np.median(own)), 3),
                        "p99_ms": round(1e3 * float(np.quantile(own, 0.99)), 3),
                        "times_as_fast": round(float(base / np.median(own)), 2),
                        "recall_at_10": round(share, 4),
                        "mb": round(method.mb, 1),
                        "peak_mib_of_512": round(method.peak_mib, 1),
                        "build_s": round(method.build_s, 1),
                        **harness.machine(),
                    }
                )
                print({name: rows[-1][name] for name in list(rows[-1])[3:13]}, flush=True)
    if not arguments.quick:
        for row in rows:
            harness.append_row(harness.RESULTS / "serving.csv", row)


if __name__ == "__main__":
    main()
