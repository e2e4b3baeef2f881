# SPDX-License-Identifier: Apache-2.0
"""A training step with candidates from a hash index, at the shape of Amazon-670K.

The claims, at C = 670,091, D = 128, B = 1,024 with Adam: a step with 3,800 candidates per example
takes at most 0.45 s, one with candidates shared by the batch at most 0.2 s, both including updates
of the tables, and the latter is at least 25 times as fast as the full softmax in the same run;
building 50 tables with 6 hashes takes at most 1.2 s on two cores, and no step has more than 50 ms
of updates; a step at C = 5,000,000 takes at most 1.3 times as long, without updates; the process
uses less than 3 GB.

    python benchmarks/lsh_head.py --only build # or steps, sweep, memory, classes_own, ..._shared
    python benchmarks/lsh_head.py              # small, nothing is written

Hidden activations are ReLUs of normal numbers and W is normal, so that no rows are near a query:
classes are found by chance, and only the cost for this number of candidates is meaningful. Run it
with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout import indexes, losses, optimizers, samplers
from tfx_largeout.heads.candidate_head import CandidateResiduals
from tfx_largeout.labels import Labels
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits

WIDTH, TABLES, BATCHES = 128, 50, 8


class Setting(NamedTuple):
    """C, B, how many classes are found (for the batch, or for each example its own), K and L."""

    classes: int
    batch: int
    candidates: int
    own: bool
    hashes: int
    tables: int = TABLES


OWN = Setting(670_091, 1024, 3_800, True, 4)
SHARED = Setting(670_091, 1024, 3_800, False, 6)
STEPS = [OWN, *(SHARED._replace(candidates=s) for s in (1_000, 3_800, 10_000, 30_000))]
MANY = 5_000_000  # classes; two such heads do not fit into 24 GB
SWEEP = [
    *(SHARED._replace(candidates=s) for s in (300, 1_000, 3_800, 10_000)),
    *(SHARED._replace(hashes=k) for k in (4, 5, 7)),
    *(SHARED._replace(tables=t) for t in (10, 100, 200)),
    *(OWN._replace(candidates=s) for s in (300, 1_000, 3_800)),
    OWN._replace(hashes=3),
    OWN._replace(tables=25),
    OWN._replace(tables=100),
]
SMALL = Setting(20_000, 64, 300, True, 3)


class Batches(NamedTuple):
    """Inputs of a few steps, used in turns."""

    hidden: tf.Tensor
    labels: tf.Tensor

    @classmethod
    def of(cls, setting: Setting) -> Batches:
        rng = np.random.default_rng(1)
        shape = (BATCHES, setting.batch, WIDTH)
        hidden = np.maximum(rng.standard_normal(shape, dtype=np.float32), 0)
        labels = rng.integers(0, setting.classes, (BATCHES, setting.batch, 1))
        return cls(tf.constant(hidden), tf.constant(labels))

    def __getitem__(self, step: tf.Tensor) -> tuple[tf.Tensor, Labels]:
        return self.hidden[step % BATCHES], Labels(self.labels[step % BATCHES])


class IndexedStep:
    """A step of a SampledHead; the update of its index is a separate call."""

    def __init__(self, setting: Setting) -> None:
        index = indexes.HashIndex(
            indexes.DWTAHash(), setting.hashes, setting.tables, first_period=1e9
        )
        sampler = samplers.LSHEmbedding(setting.candidates, per_example=setting.own)
        self.head = tlo.heads.SampledHead(
            setting.classes,
            sampler,
            optimizers.RowAdam(1e-4),
            kernel_initializer="random_normal",
            index=index,
        )
        self.head.build((None, WIDTH))
        self.index, self._setting = index, setting
        self._batches, self._count = Batches.of(setting), 0
        self._run = tf.function(self._step, autograph=False)

    def __call__(self) -> None:
        self._run(tf.constant(self._count)).numpy()
        self._count += 1

    def batch(self, number: int) -> tuple[tf.Tensor, Labels]:
        """Returns hidden activations and labels."""
        return self._batches[tf.constant(number)]

    def candidates(self) -> float:
        """Returns the mean number of classes compared with an example."""
        ids = self.head.candidates(*self.batch(0)).ids
        return float(tf.reduce_mean(tf.reduce_sum(tf.cast(ids >= 0, tf.float32), axis=-1)))

    def parts(self) -> dict[str, Callable[[], Any]]:
        """Returns parts of a step, to be timed alone; each is done by a step once."""
        hidden, labels = self.batch(0)
        head, index, own = self.head, self.index, self._setting.own
        ids = head.candidates(hidden, labels).ids
        gradients = (
            tf.fill(labels.ids.shape, 1e-3),
            tf.fill([len(hidden), ids.shape[-1]], 1e-3),
        )
        residuals = CandidateResiduals(samplers.Candidates(ids, ids, ids), None)
        update = functools.partial(head.backward, hidden, labels, residuals, gradients, True)
        budget, seed = self._setting.candidates, tf.constant([0, 1])
        found = functools.partial(index.candidates, hidden[:, tf.newaxis], budget, seed, own)
        arguments = (head.kernel, head.bias, hidden, labels.ids, ids)
        parts = {
            "hash": functools.partial(index.codes, hidden),
            "hash and find": found,
            "logits": functools.partial(candidate_logits, *arguments),
            "update": update,
        }
        return {name: tf.function(part, autograph=False) for name, part in parts.items()}

    def _step(self, step: tf.Tensor) -> tf.Tensor:
        hidden, labels = self._batches[step]
        loss = losses.ActiveSetSoftmax()
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            statistics = self.head.statistics(loss.trains_on, hidden, labels, training=True)
            values = loss.from_statistics(statistics)
        gradient = tape.gradient(values, hidden)[0, 0]
        self.head.take_step()
        return gradient


class FullSoftmaxStep:
    """A step over all classes in TensorFlow's own ops, with its fused Adam."""

    def __init__(self, setting: Setting) -> None:
        shape = [setting.classes, WIDTH]
        self._kernel = tf.Variable(tf.random.normal(shape, stddev=0.05))
        self._m, self._v = tf.Variable(tf.zeros(shape)), tf.Variable(tf.zeros(shape))
        self._batches, self._count = Batches.of(setting), 0
        self._run = tf.function(self._step, autograph=False)

    def __call__(self) -> None:
        self._run(tf.constant(self._count)).numpy()
        self._count += 1

    def _step(self, step: tf.Tensor) -> tf.Tensor:
        hidden, labels = self._batches[step]
        kernel = self._kernel.read_value()
        logits = tf.matmul(hidden, kernel, transpose_b=True)
        loss, gradient = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
            features=logits, labels=labels.ids[:, 0]
        )
        hidden_gradient = tf.matmul(gradient, kernel)
        with tf.control_dependencies([hidden_gradient]):
            tf.raw_ops.ResourceApplyAdam(
                var=self._kernel.handle,
                m=self._m.handle,
                v=self._v.handle,
                beta1_power=0.9,
                beta2_power=0.999,
                lr=1e-4,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-7,
                grad=tf.matmul(gradient, hidden, transpose_a=True),
            )
        return hidden_gradient[0, 0] + loss[0]


def step_rows(settings: list[Setting], repeats: int, with_full: bool) -> list[dict[str, Any]]:
    """Returns a row a setting."""
    rows = []
    for setting in settings:
        rows.append(step_row(setting, repeats, with_full))
        print(rows[-1])
    return rows


def step_row(setting: Setting, repeats: int, with_full: bool) -> dict[str, Any]:
    """Returns ms of a step, without upkeep, perhaps against the full softmax."""
    step = IndexedStep(setting)
    sides: dict[str, Callable[[], Any]] = {"step": step}
    if with_full:
        sides["full softmax"] = FullSoftmaxStep(setting)
    times = harness.alternate(sides, repeats)
    row = {
        **setting._asdict(),
        "candidates_of_example": round(step.candidates(), 1),
        "step_ms": round(1e3 * times["step"], 1),
    }
    if with_full:
        row["full_softmax_ms"] = round(1e3 * times["full softmax"], 1)
        row["ratio"] = round(times["full softmax"] / times["step"], 1)
    return {**row, **harness.machine()}


def sweep_rows(settings: list[Setting], repeats: int) -> list[dict[str, Any]]:
    """Returns a row a setting: how a step's time is split."""
    rows = []
    for setting in settings:
        step = IndexedStep(setting)
        times = harness.alternate({"step": step, **step.parts()}, repeats)
        ms = {name: round(1e3 * seconds, 2) for name, seconds in times.items()}
        rows.append(
            {
                **setting._asdict(),
                "candidates_of_example": round(step.candidates(), 1),
                "step_ms": ms["step"],
                "hash_ms": ms["hash"],
                "find_ms": round(ms["hash and find"] - ms["hash"], 2),
                "logits_ms": ms["logits"],
                "update_ms": ms["update"],
                "upkeep_ms": round(1e3 * _mean_upkeep(step), 2),
                **harness.machine(),
            }
        )
        print({key: rows[-1][key] for key in list(rows[-1])[2:13]}, flush=True)
    return rows


def _mean_upkeep(step: IndexedStep) -> float:
    """Returns seconds of upkeep a step, in the first period, with the rows that steps touch."""
    head, index = step.head, step.index
    index.schedule.assign([0.0, 0.0, 50.0, 0.0])
    ids = head.candidates(*step.batch(0)).ids
    touched = len(tf.unique(tf.reshape(ids, [-1])).y)
    return float(np.mean(_upkeep(index, head.kernel.value, touched, steps=2 * TABLES)))


def memory_rows(setting: Setting) -> list[dict[str, Any]]:
    """Returns the peak of this process after some steps with upkeep."""
    step = IndexedStep(setting)
    step.index.schedule.assign([0.0, 0.0, 50.0, 0.0])
    for _ in range(2 * TABLES):
        step()
    row = {**setting._asdict(), "peak_mib": round(harness.peak_of_process_mib())}
    row |= {"index_mib": round(_index_bytes(step.index) / 2**20), **harness.machine()}
    print(row)
    return [row]


def build_rows(classes: int, repeats: int) -> list[dict[str, Any]]:
    """Returns a row a family: seconds to build all tables, and ms of the upkeep of a step."""
    kernel = tf.Variable(tf.random.normal([classes, WIDTH], stddev=0.05))
    families = {
        "DWTAHash(8)": (indexes.DWTAHash(), 6, "angle"),
        "WTAHash(8)": (indexes.WTAHash(), 6, "angle"),
        "SimHash()": (indexes.SimHash(), 16, "angle"),
        "SimHash() inner product": (indexes.SimHash(), 6, "inner_product"),
    }
    rows = []
    for name, (family, hashes, similarity) in families.items():
        index = indexes.HashIndex(family, hashes, TABLES, similarity=similarity)
        sides = {"build": functools.partial(index.rebuild, kernel)}
        seconds = harness.alternate(sides, repeats)["build"]
        upkeep = _upkeep(index, kernel, touched=30_000, steps=2 * TABLES)
        rows.append(
            {
                "classes": classes,
                "family": name,
                "hashes_per_table": hashes,
                "tables": TABLES,
                "build_s": round(seconds, 3),
                "upkeep_mean_ms": round(1e3 * float(np.mean(upkeep)), 2),
                "upkeep_max_ms": round(1e3 * max(upkeep), 1),
                "bytes_a_class_and_table": round(_index_bytes(index) / classes / TABLES, 2),
                **harness.machine(),
            }
        )
        print(rows[-1])
    return rows


def _index_bytes(index: indexes.HashIndex) -> float:
    return float(sum(np.prod(w.shape) * 4 for w in index.weights))


def _upkeep(index: indexes.HashIndex, kernel: tf.Variable, touched: int, steps: int) -> list[float]:
    """Returns the seconds that each of a few calls of `update` took, in the first period."""
    update = tf.function(lambda ids: index.update(kernel, None, ids), autograph=False)
    seconds = []
    for _ in range(steps + 1):
        ids = tf.random.uniform([touched], 0, kernel.shape[0], tf.int64)
        begin = time.perf_counter()
        update(ids)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]  # the first call traces


PARTS: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "build": lambda repeats: build_rows(670_091, repeats),
    "steps": lambda repeats: step_rows(STEPS, repeats, with_full=True),
    "sweep": lambda repeats: sweep_rows(SWEEP, repeats),
    "memory": lambda _: memory_rows(OWN),
    "classes_own": lambda repeats: step_rows(
        [OWN, OWN._replace(classes=MANY)], repeats, with_full=False
    ),
    "classes_shared": lambda repeats: step_rows(
        [SHARED, SHARED._replace(classes=MANY), SHARED._replace(classes=MANY, hashes=7)],
        repeats,
        with_full=False,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(PARTS), help="a part, of 12 GB and a few minutes")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.only is None:
        build_rows(SMALL.classes, 1)
        step_rows([SMALL, SMALL._replace(own=False)], 1, with_full=True)
        sweep_rows([SMALL, SMALL._replace(own=False)], 1)
        memory_rows(SMALL)
        return
    rows = PARTS[arguments.only](arguments.repeats)
    harness.write_csv(harness.RESULTS / f"lsh_head_{arguments.only}.csv", rows)


if __name__ == "__main__":
    main()
