# SPDX-License-Identifier: Apache-2.0
"""A worker, simulated or real, that trains a tiny model by the protocol of the package.

h = e[x] * m from a trunk of an embedding and a vector; a head with the rows W of its classes. All
messages between workers, and all files, use the package's code: `agree` and `meet`, parts of
batches, the global batch, routes of rows, means of gradients, the schedule and candidates of an
index, `CheckpointFolder`. Steps are NumPy, in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from distribute.simulation.problem import RATE, Problem

from tfx_largeout.callbacks.checkpoint_folder import CheckpointFolder, Position, Snapshot
from tfx_largeout.distribute.data_parallel import mean_over_workers
from tfx_largeout.distribute.dataset_shard import padded_part
from tfx_largeout.distribute.global_batch import gather_examples, gather_labels
from tfx_largeout.distribute.meeting import END_OF_FIT, TRAIN, agree, check_alike, meet
from tfx_largeout.distribute.row_routes import RowRoutes
from tfx_largeout.indexes.found_by_all import most_voted
from tfx_largeout.indexes.table_schedule import Turn, first_schedule
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.hashing.bucket_candidates import BucketCandidates

Observe = Callable[[str, int, Any], None]
TABLES, BUDGET, PERIOD = 3, 4, 2.0


class Variable:
    """A replacement of a Keras variable for the package."""

    def __init__(self, path: str, value: np.ndarray) -> None:
        self.path, self.array = path, value.copy()

    @property
    def value(self) -> Any:
        return tf.constant(self.array)

    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        return self.array


class Worker:
    """One worker; its observations are compared with other workers and with one process.

    It misses the batch of the step `without`, unless None.
    """

    def __init__(
        self,
        workers: Any,
        folder: Any,
        problem: Problem,
        observe: Observe,
        without: int | None = None,
    ) -> None:
        self.workers, self.problem, self.observe = workers, problem, observe
        self.without = without
        self.folder = CheckpointFolder(folder, problem.keep)
        agree(workers, "connect", {"the version": 1})
        facts = {"num_classes": problem.classes, "the configuration": ["head", problem.kind]}
        agree(workers, "head 'head'", facts)
        self.rows = ClassRows(workers, problem.classes, "head")
        start = problem.start()
        self.kernel = self.rows.shard.own(start["kernel"]).copy()
        self.embedding = Variable("embedding", start["embedding"])
        self.scale = Variable("scale", start["scale"])
        self.start_index()

    def start_index(self) -> None:
        self.schedule = first_schedule(PERIOD)
        self.entries = np.full((TABLES, len(self.kernel)), -1)

    def train(self) -> None:
        step = self.resume()
        self.observe(
            "rows", step, np.asarray(self.rows.shard.class_of(np.arange(len(self.kernel))))
        )
        if (self.entries < 0).any():
            self.rebuild(step, 0, TABLES)
        while step < self.problem.steps:
            step += 1
            if step - 1 == self.without:
                continue
            self.step(step - 1)
            self.observe("weights", step, self.weights())
            if step % self.problem.every == 0 or step == self.problem.steps:
                self.save(step)
        meet(self.workers, END_OF_FIT, "fit", step)
        check_alike(self.workers, [self.embedding, self.scale])
        self.observe("end", step, None)

    def weights(self) -> dict[str, np.ndarray]:
        shared = {"embedding": self.embedding.array, "scale": self.scale.array}
        return {name: x.copy() for name, x in {**shared, "kernel": self.kernel}.items()}

    # A step

    def step(self, step: int) -> None:
        x, y, weight = self.problem.batch(step)
        part = padded_part(self.workers, *map(tf.constant, (x, y, weight)))
        x = part[0].numpy()
        rows = self.embedding.array[x]
        hidden = tf.constant(rows * self.scale.array)
        before = self.kernel.copy()
        run = self.step_of_examples if self.problem.kind == "examples" else self.step_of_rows
        loss, gradient = run(step, hidden, part[1], part[2])
        self.observe("loss", step, loss)
        slices = tf.IndexedSlices(
            tf.constant(gradient * self.scale.array), tf.constant(x), tf.constant(rows.shape)
        )
        gradients = [tf.constant((gradient * rows).sum(axis=0)), slices]
        scale, rows = mean_over_workers(self.workers, gradients, ["scale", "embedding"])
        self.scale.array -= RATE * scale.numpy()
        self.embedding.array[rows.indices.numpy()] -= RATE * rows.values.numpy()
        self.follow(step, before)

    def step_of_examples(self, step: int, hidden: Any, y: Any, weight: Any) -> tuple[Any, Any]:
        """The softmax of all classes, of the global batch."""
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            batch = gather_examples(self.workers, "head", TRAIN, step, hidden, y, weight)
        h, w = batch.hidden.numpy(), batch.weights.numpy() / len(batch.hidden.numpy())
        here = self.rows.of(batch.label_ids).numpy()
        self.observe("owned", step, (batch.label_ids.numpy(), here >= 0))
        logits = h @ self.kernel.T
        own = tf.reduce_logsumexp(tf.constant(logits), axis=1)
        log_z = self.workers.log_sum_exp(own, "head/log_sum").numpy()
        of_labels = np.where(here >= 0, np.take_along_axis(logits, np.maximum(here, 0), 1), 0)
        of_labels = self.workers.sum(tf.constant(of_labels), "head/true_logits").numpy()
        number = (batch.label_ids.numpy() >= 0).sum(axis=1)
        loss = (w * (number * log_z - of_labels.sum(axis=1))).sum()
        error = number[:, np.newaxis] * np.exp(logits - log_z[:, np.newaxis])
        for k in range(here.shape[1]):
            at = np.flatnonzero(here[:, k] >= 0)
            error[at, here[at, k]] -= 1
        error *= w[:, np.newaxis]
        upstream = tf.constant(error @ self.kernel)
        gradient = tape.gradient(batch.hidden, hidden, output_gradients=upstream)
        self.kernel -= RATE * error.T @ h
        return loss, gradient.numpy()

    def step_of_rows(self, step: int, hidden: Any, y: Any, weight: Any) -> tuple[Any, Any]:
        """The squared distance to the rows of labels, which are fetched and pushed."""
        labels = gather_labels(self.workers, "head", TRAIN, step, y, weight, None, None)
        routes = RowRoutes(self.workers, self.rows.shard, labels.label_ids, labels.parts, "head")
        ids = labels.label_ids.numpy()
        self.observe("owned", step, (ids, self.rows.of(labels.label_ids).numpy() >= 0))
        kept = np.arange(len(hidden.numpy())) if labels.kept is None else labels.kept.numpy()
        w = labels.weights.numpy()[labels.parts.own.numpy()] / len(ids)
        places, given = routes.places.numpy(), routes.rows.numpy()
        fetched = routes.fetch(tf.constant(self.kernel[given]), "rows").numpy()
        there = (places < len(fetched) - 1)[..., np.newaxis]
        error = np.where(there, hidden.numpy()[kept][:, np.newaxis] - fetched[places], 0)
        error *= w[:, np.newaxis, np.newaxis]
        own = np.sum(error**2 / np.where(w > 0, w, 1)[:, np.newaxis, np.newaxis]) / 2
        loss = self.workers.sum(tf.constant(own), "head/loss").numpy()
        pushed = np.zeros_like(fetched)
        np.add.at(pushed, places, -error)
        pushed[-1] = 0
        self.kernel[given] -= RATE * routes.push(tf.constant(pushed), "back").numpy()
        gradient = np.zeros(hidden.numpy().shape)
        gradient[kept] = self.workers.size * error.sum(axis=1)
        return loss, gradient

    # The index

    def rebuild(self, step: int, first: int, end: int) -> None:
        self.entries[first:end] = self.problem.codes(self.kernel)[first:end]
        self.observe("rebuild", step, (first, end))

    def follow(self, step: int, before: np.ndarray) -> None:
        """Updates tables by the common schedule; requests candidates of all workers."""
        turn = Turn.of(tf.constant(self.schedule), TABLES)
        first, end = turn.tables.numpy()
        moved = (self.problem.codes(self.kernel) != self.problem.codes(before)).sum()
        if first < end:
            self.rebuild(step, int(first), int(end))
        own, most = tf.constant(int(moved), tf.int64), 0.1 * TABLES * self.problem.classes
        self.schedule = turn.after(self.rows, own, 1.5, PERIOD, most).numpy()
        self.observe("schedule", step, self.schedule.tolist())
        votes = (self.entries == self.problem.query(step)[:, np.newaxis]).sum(axis=0)
        self.observe("votes", step, (self.rows.shard.class_of(np.arange(len(votes))), votes))
        best = np.argsort(-votes, kind="stable")[:BUDGET]
        found = BucketCandidates(tf.constant(best), tf.constant(votes[best]))
        ids = most_voted(self.rows, found, BUDGET, tf.constant(0, tf.int64))
        if not self.rows.shard.is_whole:  # one process has found them itself
            self.observe("candidates", step, ids.numpy().tolist())

    # Checkpoints

    def save(self, step: int) -> None:
        position = Position(*divmod(step, self.problem.per_epoch))
        agree(self.workers, "a save of Checkpoint", {"epochs": position[0], "batches": position[1]})
        arrays = {**self.weights(), "schedule": self.schedule, "entries": self.entries}
        named = [(name, lambda array=array: array) for name, array in arrays.items()]
        own = [("rank", lambda: np.array(self.workers.rank))]
        facts: dict[str, Any] = {"position": position}
        snapshot = Snapshot(facts, {"own": self.workers.rank}, named, own, frozenset(["kernel"]))
        try:
            self.folder.write(position, snapshot)
        except OSError as error:
            self.observe("not saved", step, str(error))
        else:
            self.observe("saved", step, position)

    def resume(self) -> int:
        """Resumes from the newest checkpoint; returns the number of the next step."""
        self.folder.clean()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = self.folder.newest({"kernel"})
        if run is None:
            self.observe("resumed", 0, None)
            return 0
        self.kernel = run.array("kernel")
        self.embedding.array, self.scale.array = run.array("embedding"), run.array("scale")
        self.start_index()
        if run.num_workers == self.workers.size:
            self.schedule, self.entries = run.array("schedule"), run.array("entries")
            assert run.array("rank") == self.workers.rank
        epoch, batch = run.facts["position"]
        step = epoch * self.problem.per_epoch + batch
        self.observe("resumed", step, run.facts["position"])
        self.observe("weights", step, self.weights())
        return step
