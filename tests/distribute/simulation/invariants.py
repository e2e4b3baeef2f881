# SPDX-License-Identifier: Apache-2.0
"""Invariants of workers at each step, for any events, and of the disk at each change.

A group: workers of consecutive ranks that hold all classes. Nothing of the package is used here.
"""

from __future__ import annotations

import collections
import hashlib
import io
import json
import zipfile
from typing import Any

import numpy as np
from distribute.simulation.network import Violation
from distribute.simulation.problem import Problem

# The same on all workers, bit for bit; rows W on all workers of the same place in their groups.
ALIKE = ("loss", "schedule", "candidates", "rebuild", "resumed", "save", "shared", "kernel", "end")


class Invariants:
    """The reports of workers, and the files on the disk, compared with one process.

    Attributes:
        start: The number of the present start of all workers.
        members, size: The number of workers in a group, and of all.
        most: The largest number of checkpoints after a save.
        committed: The step of the newest checkpoint that may not get lost, -1 before one.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.committed = -1
        self.damaged: set[Any] = set()
        self.begin(0, 1, 1, {})
        self._said: dict[Any, dict[int, list[Any]]] = collections.defaultdict(
            lambda: collections.defaultdict(list)
        )
        self._files: dict[Any, Checkpoint] = {}

    def begin(self, start: int, members: int, groups: int, names: dict[str, Any]) -> None:
        self.start, self.members, self.size = start, members, members * groups
        self.most = max(self.problem.keep, sum(name.endswith(".npz") for name in names))
        self.ends: set[int] = set()

    def observe(self, rank: int, kind: str, step: int, value: Any) -> None:
        """A worker says something: see `Worker`."""
        group, place = divmod(rank, self.members)
        if kind == "weights":
            self._check_weights(rank, step, value)
            self.observe(rank, f"kernel {place}", step, value["kernel"].tobytes())
            kind, value = "shared", value["embedding"].tobytes() + value["scale"].tobytes()
        if kind in ("saved", "not saved"):
            self.committed = max(self.committed, step if kind == "saved" else -1)
            kind, value = "save", kind
        said = self._said[self.start, kind, step]
        said[rank].append(value)
        number = len(said[rank]) - 1
        if kind.split()[0] in ALIKE:
            for other, values in said.items():
                if len(values) > number and values[number] != value:
                    raise Violation(f"{kind} of workers {other}, {rank}: {values[number]}, {value}")
        if kind == "loss" and not np.isclose(value, self.problem.losses[step], 1e-9, 1e-12):
            raise Violation(f"the loss {value} is {self.problem.losses[step]} in one process")
        if kind == "resumed" and step < self.committed:
            raise Violation(f"went on from step {step}, with a checkpoint of {self.committed}")
        if kind == "end":
            self.ends.add(rank)
        of_group = {r: values[0] for r, values in said.items() if r // self.members == group}
        if len(of_group) == self.members and kind in ("rows", "owned", "candidates"):
            getattr(self, f"_check_{kind}")(step, dict(sorted(of_group.items())))

    def _check_weights(self, rank: int, step: int, weights: Any) -> None:
        expected = dict(self.problem.weights[step])
        expected["kernel"] = expected["kernel"][rank % self.members :: self.members]
        _check_close(f"of worker {rank} at step {step}", weights, expected)

    def _check_rows(self, step: int, rows: dict[int, Any]) -> None:
        classes = np.concatenate(list(rows.values()))
        if not np.array_equal(np.sort(classes), np.arange(self.problem.classes)):
            raise Violation(f"each class must have one owner; got {rows}")

    def _check_owned(self, step: int, owned: dict[int, Any]) -> None:
        (ids, _), *_ = owned.values()
        if any(not np.array_equal(other, ids) for other, _ in owned.values()):
            raise Violation(f"labels of step {step} differ: {owned}")
        if not np.array_equal(sum(here.astype(int) for _, here in owned.values()), ids >= 0):
            raise Violation(f"each label must be one worker's; got {owned}")

    def _check_candidates(self, step: int, candidates: dict[int, Any]) -> None:
        """The classes with the most votes, ties by the lower id, by rising id, and then -1."""
        said = [self._said[self.start, "votes", step][rank][0] for rank in candidates]
        ids, votes = (np.concatenate([one[part] for one in said]) for part in (0, 1))
        found, *_ = candidates.values()
        order = np.lexsort([ids, -votes])[: len(found)]
        best = sorted(ids[order][votes[order] > 0].tolist())
        if found != best + [-1] * (len(found) - len(best)):
            raise Violation(f"candidates of step {step}: {found}, by votes {best}")

    # The disk

    def check_disk(self, names: dict[str, Any]) -> None:
        """A checkpoint with its final name is whole, and equals one process's state at its step."""
        for name, inode in names.items():
            if not name.endswith(".npz") or inode in self.damaged:
                continue
            run = self._files.get(inode) or self._files.setdefault(inode, Checkpoint(inode))
            missing = [part for part, _ in run.parts if part not in names]
            if missing or run.error:
                step = self.step_of(name)
                if not (inode.came_back and step < self.committed):
                    raise Violation(f"{name} is half a checkpoint: {run.error or missing}")
            elif not run.is_checked:
                run.is_checked = True
                self._check_file(name, run, names)

    def _check_file(self, name: str, run: Checkpoint, names: dict[str, Any]) -> None:
        parts = [Checkpoint(names[part]) for part, _ in run.parts]
        if any(p.digest != digest for p, (_, digest) in zip(parts, run.parts, strict=True)):
            raise Violation(f"parts of {name} are not those that it names")
        found = {"kernel": self.problem.start()["kernel"], **run.arrays}
        of_rows = [part.arrays["kernel"] for part in parts if "kernel" in part.arrays]
        for place, rows in enumerate(of_rows):  # of one group
            found["kernel"][place :: len(of_rows)] = rows
        step = self.step_of(name)
        expected = self.problem.weights[step]
        _check_close(f"of {name}", {n: found[n] for n in expected}, expected)

    def step_of(self, name: str) -> int:
        _, epoch, _, batch = name.removesuffix(".npz").split("-")
        return int(epoch) * self.problem.per_epoch + int(batch)

    def check_tidy(self, names: dict[str, Any], is_saved: bool) -> None:
        """After a save: not too many checkpoints, and no file that none of them names.

        A save that failed removes no checkpoint, so there may be as many as at the start.
        """
        if is_saved:
            self.most = self.problem.keep
        kept = [name for name in names if name.endswith(".npz")]
        if len(kept) > self.most:
            raise Violation(f"more than {self.most} checkpoints: {kept}")
        if any(name.endswith(".damaged") for name in names):
            return
        used = {part for name in kept for part, _ in self._files[names[name]].parts}
        left = [name for name in names if name.endswith((".part", ".tmp")) and name not in used]
        if left:
            raise Violation(f"files of no checkpoint: {left}")


class Checkpoint:
    """A written file, read by its format only."""

    def __init__(self, inode: Any) -> None:
        self.is_checked, self.error = False, ""
        self.parts: list[Any] = []
        self.arrays: dict[str, np.ndarray] = {}
        try:
            archive = zipfile.ZipFile(io.BytesIO(inode.data))
            header = archive.read("checkpoint.json")
            self.digest = hashlib.sha256(header).hexdigest()
            for name in json.loads(header)["digests"]:
                self.arrays[name] = np.load(io.BytesIO(archive.read(f"{name}.npy")))
            self.parts = json.loads(header)["facts"].get("parts", [])
        except Exception as error:
            self.error = repr(error)


def _check_close(what: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, array in expected.items():
        if array.shape != found[name].shape or not np.allclose(found[name], array, 1e-9, 1e-11):
            raise Violation(f"{name} {what} is {found[name]}, in one process {array}")
