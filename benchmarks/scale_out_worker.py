# SPDX-License-Identifier: Apache-2.0
"""A worker for scale_out.py: python scale_out_worker.py PART FOLDER SETTINGS."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.distribute.collectives import ConnectedWorkers
from tfx_largeout.distribute.workers import Workers, set_current

WIDTH, FEATURES = 128, 64
CLASSES, BATCH, EXAMPLES, WORDS, LENGTH = 1003, 48, 5 * 48 - 7, 200, 6  # of the equality runs


# Equality


def head_of(name: str) -> tuple[Any, Any]:
    """Returns a head and its loss; with seeds, so that all numbers of workers start equally."""
    weights = {"kernel_initializer": keras.initializers.GlorotUniform(seed=3), "name": "head"}
    adagrad, softmax = tlo.optimizers.RowAdagrad(0.1), tlo.losses.SoftmaxCrossentropy()
    sampled = tlo.losses.ComplementarySum()
    if name == "sampled":
        sampler = tlo.samplers.LogUniform(100)
        return tlo.heads.SampledHead(CLASSES, sampler, adagrad, seed=7, **weights), sampled
    if name == "lsh":
        sampler = tlo.samplers.LSHEmbedding(100, tlo.samplers.Uniform(50))
        index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), hashes_per_table=4, num_tables=20)
        head = tlo.heads.SampledHead(CLASSES, sampler, adagrad, seed=7, index=index, **weights)
        return head, sampled
    if name == "dense":
        return tlo.heads.DenseHead(CLASSES, **weights), softmax
    if name == "factored":
        head = tlo.heads.FactoredHead(CLASSES, 0.02, **weights)
        return head, tlo.losses.SphericalSoftmax()
    backward = name.removeprefix("exact_")
    head = tlo.heads.ExactSoftmaxHead(CLASSES, adagrad, backward=backward, seed=1, **weights)
    return head, softmax


HEADS = ("sampled", "lsh", "dense", "exact_all", "exact_selected", "factored")


def batches() -> tf.data.Dataset:
    """Five batches, the last one of an odd number of examples, with 1 to 3 labels each."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, WORDS, [EXAMPLES, LENGTH]).astype("int32")
    counts = rng.integers(1, 4, EXAMPLES)
    flat = rng.zipf(1.3, counts.sum()) % CLASSES
    labels = tf.RaggedTensor.from_row_lengths(flat.astype("int64"), counts)
    return tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH)


class Losses(keras.callbacks.Callback):
    """The loss of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])


def equality(head: str) -> dict[str, Any]:
    """Trains 50 steps, evaluates and predicts; results of all workers are joined."""
    keras.utils.set_random_seed(1)
    layer, loss = head_of(head)
    embedding = keras.layers.Embedding(WORDS, 12, name="words")
    trunk = [embedding, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(16, "tanh")]
    model = keras.Sequential([keras.Input([LENGTH], dtype="int32"), *trunk, layer])
    metrics = [tlo.metrics.PrecisionAtK(1), tlo.metrics.MeanReciprocalRank()]
    metrics += [tlo.metrics.ExactLoss()]
    optimizer = tlo.distribute.DataParallel(keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, loss, metrics=metrics)
    steps = Losses()
    data = tlo.distribute.shard(batches())
    model.fit(data, epochs=10, shuffle=False, verbose=0, callbacks=[steps])
    found = model.evaluate(tlo.distribute.shard(batches()), return_dict=True, verbose=0)
    scores, ids = tlo.top_k_model(model, 5).predict(batches().map(lambda x, y: x), verbose=0)
    weights = [weight.numpy() for below in trunk for weight in below.trainable_weights]
    together = np.concatenate([weight.ravel() for weight in weights])
    return {
        "kernel": rows_of_all(layer).ravel().tolist(),
        "trunk": together.tolist(),
        "bits": hashlib.sha256(together.tobytes()).hexdigest(),
        "losses": steps.losses,
        "evaluate": [value for name, value in found.items() if name != "loss"],
        "scores": scores.ravel().tolist(),
        "ids": ids.ravel().tolist(),
    }


def rows_of_all(head: Any) -> np.ndarray:
    """Returns W `[C, D]`."""
    workers = tlo.distribute.current()
    if isinstance(head, tlo.heads.FactoredHead):
        head.settle()
        state = head.state
        own = np.asarray(state.v) @ np.asarray(state.u) + np.asarray(state.shift)
    else:
        own = np.asarray(head.kernel)
    most = -(-CLASSES // workers.size)
    padded = np.pad(own, [[0, most - len(own)], [0, 0]])
    every = workers.gather(tf.constant(padded), "rows of all").numpy()
    return np.swapaxes(every, 0, 1).reshape(-1, own.shape[1])[:CLASSES]


# Memory, times, bytes


def large_head_of(kind: str, classes: int, candidates: int) -> tuple[Any, Any]:
    """Returns a head for many classes, and its loss."""
    adam = tlo.optimizers.RowAdam(0.005)
    if kind == "factored":
        return tlo.heads.FactoredHead(classes, 0.002), tlo.losses.SphericalSoftmax()
    if kind == "exact":
        head = tlo.heads.ExactSoftmaxHead(classes, adam, seed=1)
        return head, tlo.losses.SoftmaxCrossentropy()
    sampler = tlo.samplers.LogUniform(candidates)
    return tlo.heads.SampledHead(classes, sampler, adam, seed=1), tlo.losses.ComplementarySum()


def fitted(
    classes: int,
    batch: int,
    candidates: int,
    steps: int,
    callbacks: list[Any],
    kind: str = "sampled",
) -> None:
    """Trains a head, by default with shared candidates and Adam, as `fit` does it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[batch, FEATURES]).astype("float32")
    y = rng.zipf(1.3, batch) % classes
    data = tf.data.Dataset.from_tensors((x, y)).repeat(steps)
    options = tf.data.Options()
    options.autotune.enabled = False  # the end of `fit` waits for its thread
    head, loss = large_head_of(kind, classes, candidates)
    model = keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(WIDTH, "relu"), head])
    model.compile(tlo.distribute.DataParallel("sgd"), loss)
    shard = tlo.distribute.shard(data).with_options(options)
    model.fit(shard, shuffle=False, verbose=0, callbacks=callbacks)


def memory(**setting: int) -> dict[str, Any]:
    """The peak memory of the process, and its memory before the model."""
    tf.constant([1.0]) + 1.0
    empty = harness.peak_of_process_mib()
    fitted(**setting, callbacks=[])
    rows = len(
        range(tlo.distribute.current().rank, setting["classes"], tlo.distribute.current().size)
    )
    state = rows * (3 * 4 * (WIDTH + 1) + 2 * 4) / 2**20  # W, b, two slots of each, ages of rows
    peak = harness.peak_of_process_mib()
    return {"empty_mib": round(empty), "peak_mib": round(peak), "state_mib": round(state)}


class Ends(keras.callbacks.Callback):
    """When each step ended, and how many bytes had been received by then."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.bytes: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter())
        self.bytes.append(received())


class Silent(Workers):
    """A worker that hears itself in place of the others: a step without what sending takes."""

    def gather(self, x: tf.Tensor, name: str) -> tf.Tensor:
        return tf.stack([x] * self.size)

    def add_up(self, x: tf.Tensor, name: str) -> tf.Tensor:
        return tf.identity(x)

    def exchange(self, x: tf.Tensor, name: str) -> tf.Tensor:
        return tf.identity(x)


def overhead(**setting: int) -> dict[str, Any]:
    """The median step, in milliseconds."""
    ends = Ends()
    fitted(**setting, callbacks=[ends])
    return {"ms": round(1000 * statistics.median(np.diff(ends.seconds[3:])), 2)}


class Waits(keras.callbacks.Callback):
    """The time of a step's collectives: each records in the graph when it begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []  # of a traced step
        self.steps: list[list[float]] = []
        # Seconds, number and bytes.
        self._total = tf.Variable([0.0, 0.0, 0.0], trainable=False, dtype=tf.float64)
        run = ConnectedWorkers._run

        def timed(workers: Any, collective: Any, name: str, x: Any, sent: Any) -> tf.Tensor:
            self.names.append(name)
            with tf.control_dependencies([sent]):
                start = tf.timestamp()
            with tf.control_dependencies([start]):
                y = run(workers, collective, name, x, tf.identity(sent))
            with tf.control_dependencies([y]):
                seconds = tf.timestamp() - start
            share = 2 if name.startswith("sum/") else 1 if name.startswith("to/") else workers.size
            received = tf.size(x) * x.dtype.size * share * (workers.size - 1) / workers.size
            sends = float(workers.size > 1)  # a group of one worker does not
            added = tf.stack([seconds, sends, tf.cast(received, tf.float64)])
            added = tf.raw_ops.AssignAddVariableOp(resource=self._total.handle, value=added)
            with tf.control_dependencies([] if added is None else [added]):
                return tf.identity(y)

        ConnectedWorkers._run = timed

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._start = time.perf_counter(), time.process_time(), self._total.numpy()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        seconds, of_cores, before = self._start
        ended = time.perf_counter() - seconds, time.process_time() - of_cores
        self.steps.append([*ended, *(self._total.numpy() - before)])


def steps(**setting: Any) -> dict[str, Any]:
    """Medians of a step: ms, ms of the processor's cores, ms in collectives, number, bytes."""
    waits = Waits()
    fitted(**setting, callbacks=[waits])
    found = np.array(waits.steps[3:])
    of_step, of_cores, in_them, number, received = np.median(found, axis=0)
    row = {"ms": of_step, "cores_ms": of_cores, "collectives_ms": in_them}
    row = {name: round(1000 * seconds, 2) for name, seconds in row.items()}
    return row | {"collectives": int(number), "bytes": int(received)}


def bytes_received(**setting: int) -> dict[str, Any]:
    """The bytes that all workers receive in a step."""
    ends = Ends()
    fitted(**setting, callbacks=[ends])
    return {"bytes": (ends.bytes[-1] - ends.bytes[5]) / (len(ends.bytes) - 6)}


def received() -> int:
    """Returns the bytes that the loopback interface has received since it is up."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (line,) = [line for line in lines if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[0])


def collectives(sizes: list[int]) -> dict[str, Any]:
    """Milliseconds of each collective in a graph, by the bytes that a worker has."""
    workers, rows = tlo.distribute.current(), []
    kinds: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
        "gather": lambda x: workers.gather(x, "gather"),
        "all_reduce": lambda x: workers.sum(x, "sum"),
        "all_to_all": lambda x: workers.sum_of_own(tf.reshape(x, [workers.size, -1]), "to"),
    }
    for size in sizes:
        x = tf.zeros([size // 4])
        for kind, run in kinds.items():
            call = tf.function(lambda x, run=run: tf.reduce_sum(run(x)), autograph=False)
            call(x)
            seconds = []
            for _ in range(200 if size < 2**20 else 30):
                start = time.perf_counter()
                call(x)
                seconds.append(time.perf_counter() - start)
            ms = round(1000 * statistics.median(seconds), 3)
            rows.append({"collective": kind, "bytes": size, "ms": ms})
    return {"rows": rows}


PARTS = {
    "equality": equality,
    "memory": memory,
    "overhead": overhead,
    "steps": steps,
    "bytes": bytes_received,
    "collectives": collectives,
}

if __name__ == "__main__":
    part, folder, settings = sys.argv[1:]
    options = json.loads(settings)
    if options.pop("silent", False):
        config = json.loads(os.environ["TF_CONFIG"])
        set_current(Silent(len(config["cluster"]["worker"]), config["task"]["index"]))
    else:
        names = {"wire_dtype", "data_replicas"} & options.keys()
        tlo.distribute.connect(timeout=120, **{name: options.pop(name) for name in names})
    rank = tlo.distribute.current().rank
    found = PARTS[part](**options)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
