# SPDX-License-Identifier: Apache-2.0
"""A worker, simulated or real, that trains a tiny model by the protocol of the package.

h = e[x] * m from a trunk of an embedding and a vector; a head with the rows W of its classes. All
messages between workers, and all files, use the package's code: `agree` and `meet`, parts of
batches, the global batch, routes and replicas of rows, means of gradients, the schedule and
candidates of an index, `CheckpointFolder`. Steps are NumPy, in float64. Each group has an index,
although no head has one there: equal rows must have equal schedules.
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
from tfx_largeout.heads.replicated_rows import ReplicatedRows
from tfx_largeout.indexes.found_by_all import most_voted
from tfx_largeout.indexes.table_schedule import Turn, first_schedule
from tfx_largeout.ops.candidates.row_gradients import RowGradients
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.hashing.bucket_candidates import BucketCandidates

Observe = Callable[[str, int, Any], None]
TABLES, BUDGET, PERIOD = 3, 4, 2.0


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
        self.workers, self.group, self.replicas = workers, workers.group, workers.replicas
        self.problem, self.observe, self.without = problem, observe, without
        self.folder = CheckpointFolder(folder, problem.keep)
        agree(workers, "connect", {"the version": 1})
        facts = {"num_classes": problem.classes, "the configuration": ["head", problem.kind]}
        agree(workers, "head 'head'", facts)
        self.rows = ClassRows(self.group, problem.classes, "head")
        self.rows_of_files = frozenset(() if self.rows.shard.is_whole else ["kernel"])
        start = problem.start()
        # Other groups start with other rows, and get the rows of the first group.
        self.kernel = tf.Variable(self.rows.shard.own(start["kernel"]) + self.replicas.rank)
        self.embedding, self.scale = tf.Variable(start["embedding"]), tf.Variable(start["scale"])
        self.replicated = None
        if workers.group is not workers:
            self.replicated = ReplicatedRows(self.replicas, self.kernel, None, "head")
            self.replicated.start_alike()
        self.start_index()

    def start_index(self) -> None:
        self.schedule = first_schedule(PERIOD)
        self.entries = np.full((TABLES, self.rows.num_rows), -1)

    def train(self) -> None:
        step = self.resume()
        self.observe("rows", step, self.rows.shard.class_of(np.arange(self.rows.num_rows)))
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
        return {name: getattr(self, name).numpy() for name in ("embedding", "scale", "kernel")}

    # A step

    def step(self, step: int) -> None:
        x, y, weight = self.problem.batch(step)
        part = padded_part(self.workers, *map(tf.constant, (x, y, weight)))
        x, before = part[0].numpy(), self.weights()
        rows, scale = before["embedding"][x], before["scale"]
        hidden = tf.constant(rows * scale)
        fetches = self.problem.kind == "rows" and self.replicated is None
        run = self.step_of_fetched_rows if fetches else self.step_of_examples
        loss, gradient = run(step, hidden, part[1], part[2])
        self.observe("loss", step, loss)
        slices = tf.IndexedSlices(
            tf.constant(gradient * scale), tf.constant(x), tf.constant(rows.shape)
        )
        gradients = [tf.constant((gradient * rows).sum(axis=0)), slices]
        of_scale, of_rows = mean_over_workers(self.workers, gradients, ["scale", "embedding"])
        take_step(self.scale, slice(None), of_scale)
        take_step(self.embedding, of_rows.indices.numpy(), of_rows.values)
        self.follow(step, before["kernel"])

    def step_of_examples(self, step: int, hidden: Any, y: Any, weight: Any) -> tuple[Any, Any]:
        """The softmax of all classes, or the squared distance to the rows of labels."""
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            batch = gather_examples(self.group, "head", TRAIN, step, hidden, y, weight)
        h, kernel = batch.hidden.numpy(), self.kernel.numpy()
        here = self.rows.of(batch.label_ids).numpy()
        self.observe("owned", step, (batch.label_ids.numpy(), here >= 0))
        counts = (here[:, :, np.newaxis] == np.arange(len(kernel))).sum(axis=1)
        if self.problem.kind == "examples":
            logits, number = h @ kernel.T, (batch.label_ids.numpy() >= 0).sum(axis=1)
            own = tf.reduce_logsumexp(tf.constant(logits), axis=1)
            log_z = self.group.log_sum_exp(own, "head/log_sum").numpy()
            error = number[:, np.newaxis] * np.exp(logits - log_z[:, np.newaxis]) - counts
            own, of_all, ids = -counts * logits, number * log_z, np.arange(len(kernel))
            pull = np.zeros_like(error)
        else:
            own = counts * ((h[:, np.newaxis] - kernel) ** 2).sum(axis=2) / 2
            error, pull, of_all, ids = -counts, counts, 0.0, np.flatnonzero(counts.any(axis=0))
        values = self.group.sum(tf.constant(own.sum(axis=1)), "head/values").numpy() + of_all
        loss, w = self.mean_of_all(batch, tf.constant(values))
        error, pull = w[:, np.newaxis] * error, w[:, np.newaxis] * pull
        upstream = tf.constant(error @ kernel + pull.sum(axis=1)[:, np.newaxis] * h)
        gradient = (error.T @ h + pull.sum(axis=0)[:, np.newaxis] * kernel)[ids]
        no_bias = tf.constant(np.zeros(len(ids)))
        found = RowGradients(tf.constant(ids), upstream, tf.constant(gradient), no_bias)
        if self.replicated is not None:
            if self.problem.kind == "examples":
                found = self.replicated.sum_of_all(found)
            else:
                found = self.replicated.sum_of_some(found, step)
        take_step(self.kernel, found.ids.numpy(), found.kernel)
        return loss, tape.gradient(batch.hidden, hidden, output_gradients=upstream).numpy()

    def mean_of_all(self, batch: Any, values: Any) -> tuple[Any, np.ndarray]:
        """The weighted mean over the examples of all groups, and its gradient for this group's."""
        of_all = [values, batch.weights]
        with tf.GradientTape() as tape:
            tape.watch(values)
            if batch.parts is not None:
                of_all = batch.parts.of_all_groups(of_all, "head/groups")
        w = of_all[1].numpy() / len(of_all[1].numpy())
        gradient = tape.gradient(of_all[0], values, output_gradients=tf.constant(w))
        return (of_all[0].numpy() * w).sum(), gradient.numpy()

    def step_of_fetched_rows(self, step: int, hidden: Any, y: Any, weight: Any) -> tuple[Any, Any]:
        """The squared distance to the rows of labels, which are fetched and pushed."""
        labels = gather_labels(self.workers, "head", TRAIN, step, y, weight, None, None)
        routes = RowRoutes(self.workers, self.rows.shard, labels.label_ids, labels.parts, "head")
        ids = labels.label_ids.numpy()
        self.observe("owned", step, (ids, self.rows.of(labels.label_ids).numpy() >= 0))
        kept = np.arange(len(hidden.numpy())) if labels.kept is None else labels.kept.numpy()
        w = labels.weights.numpy()[labels.parts.own.numpy()] / len(ids)
        places, given = routes.places.numpy(), routes.rows.numpy()
        fetched = routes.fetch(tf.constant(self.kernel.numpy()[given]), "rows").numpy()
        there = (places < len(fetched) - 1)[..., np.newaxis]
        error = np.where(there, hidden.numpy()[kept][:, np.newaxis] - fetched[places], 0)
        error *= w[:, np.newaxis, np.newaxis]
        own = np.sum(error**2 / np.where(w > 0, w, 1)[:, np.newaxis, np.newaxis]) / 2
        loss = self.workers.sum(tf.constant(own), "head/loss").numpy()
        pushed = np.zeros_like(fetched)
        np.add.at(pushed, places, -error)
        pushed[-1] = 0
        take_step(self.kernel, given, routes.push(tf.constant(pushed), "back"))
        gradient = np.zeros(hidden.numpy().shape)
        gradient[kept] = self.workers.size * error.sum(axis=1)
        return loss, gradient

    # The index

    def rebuild(self, step: int, first: int, end: int) -> None:
        self.entries[first:end] = self.problem.codes(self.kernel.numpy())[first:end]
        self.observe("rebuild", step, (first, end))

    def follow(self, step: int, before: np.ndarray) -> None:
        """Updates tables by the common schedule; requests candidates of all workers."""
        turn = Turn.of(tf.constant(self.schedule), TABLES)
        first, end = turn.tables.numpy()
        codes = self.problem.codes(self.kernel.numpy())
        moved = (codes != self.problem.codes(before)).sum()
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
        snapshot = Snapshot(facts, {"own": self.workers.rank}, named, own, self.rows_of_files)
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
            run = self.folder.newest(self.rows_of_files)
        if run is None:
            self.observe("resumed", 0, None)
            return 0
        for name in self.weights():
            getattr(self, name).assign(run.array(name))
        self.start_index()
        if not run.is_of_others:
            self.schedule, self.entries = run.array("schedule"), run.array("entries")
            assert run.array("rank") == self.workers.rank
        epoch, batch = run.facts["position"]
        step = epoch * self.problem.per_epoch + batch
        self.observe("resumed", step, run.facts["position"])
        self.observe("weights", step, self.weights())
        return step


def take_step(variable: Any, at: Any, gradient: Any) -> None:
    value = variable.numpy().copy()
    value[at] -= RATE * gradient.numpy()
    variable.assign(value)
