# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the protocol that the simulation must notice."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

_FOLDER, _FILE = "callbacks.checkpoint_folder", "callbacks.checkpoint_file"

# By name: the module, the function, the old text and the new text.
MUTATIONS: dict[str, tuple[str, str, dict[str, str]]] = {
    "commits before all parts are written": (
        _FOLDER,
        "_write_files",
        {
            "digest = together(workers, _SITE_OF_FILES, write_part)": 'digest = "00" * 32',
            "if missing:": "if missing and False:",
            "_SITE_OF_FILES, write_shared)": "_SITE_OF_FILES, write_shared); write_part()",
        },
    ),
    "does not wait for the commit": (
        _FOLDER,
        "_write_files",
        {"together(workers, _SITE_OF_FILES, write_shared)": "write_shared()"},
    ),
    "removes files that are used": (
        _FOLDER,
        "CheckpointFolder._remove_unused",
        {"path.name not in used and": ""},
    ),
    "what is its own is of worker 0": (
        _FOLDER,
        "StoredRun.__init__",
        {"self._parts[workers.rank % len(self._parts)]": "self._parts[0]"},
    ),
    "rows of some writers are left out": (
        _FOLDER,
        "StoredRun._dealt",
        {"if not own.meets(written)": "if own.first < written.first"},
    ),
    "bytes are not on the disk": (_FILE, "write_checkpoint", {"os.fsync(file.fileno())": "pass"}),
    "names are not on the disk": (
        _FILE,
        "write_checkpoint",
        {"put_names_on_disk(path.parent)": "pass"},
    ),
    "a file gets its name at once": (
        _FILE,
        "write_checkpoint",
        {"path.name + TEMPORARY": "path.name"},
    ),
    "class c has worker c % (R + 1)": (
        "distribute.class_shard",
        "ClassShard.row_of",
        {"(offset % stride == 0)": "(offset % (stride + 1) == 0)"},
    ),
    "pushes rows to the wrong worker": (
        "distribute.row_routes",
        "RowRoutes.__init__",
        {"tf.stack([owner, offset], axis=1)": "tf.stack([needs, offset], axis=1)"},
    ),
    "sends nothing where there is nothing": (
        "distribute.row_routes",
        "RowRoutes.__init__",
        {"tf.maximum(most, 1)": "most"},
    ),
    "leaves out the last examples": (
        "distribute.dataset_shard",
        "_place",
        {"(size + workers.size - 1) // workers.size": "tf.maximum(size // workers.size, 1)"},
    ),
    "does not look where the others are": (
        "distribute.meeting",
        "meet",
        {"tf.reduce_all(heard[:, :_SAME] == heard[:1, :_SAME])": "True"},
    ),
    "counts what fills a batch up": (
        "distribute.global_batch",
        "_is_minus_zero",
        {"tf.constant(pattern, integer)": "tf.constant(pattern + 1, integer)"},
    ),
    "adds up as if all rows were other ones": (
        "distribute.data_parallel",
        "_slices",
        {"tf.size(unique)) / workers.size": "tf.size(unique))"},
    ),
    "counts the example of no worker": (
        "distribute.global_batch",
        "Parts.of_all_groups",
        {"tf.cast(~self._is_empty, wide)": "tf.ones([], wide)"},
    ),
    "the gradient of h is of one group": (
        "distribute.global_batch",
        "gather_examples",
        {"workers.everyone.size": "workers.size"},
    ),
    "replicas add up rows by their place": (
        "heads.replicated_rows",
        "ReplicatedRows.sum_of_some",
        {"tf.searchsorted(named, own, out_type=tf.int64)": "tf.range(number)"},
    ),
    "a checkpoint does not have its groups": (
        _FOLDER,
        "_write_files",
        {"workers.replicas.size}": "1}"},
    ),
    "a schedule of its own": (
        "indexes.table_schedule",
        "Turn.after",
        {"moved = rows.workers.sum(": "rows.workers.sum("},
    ),
    "votes of rows, not of classes": (
        "indexes.found_by_all",
        "most_voted",
        {"rows.shard.class_of(found.ids), found.marks": "found.ids, found.marks"},
    ),
}


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """Within it the package has a mistake."""
    module, path, changes = MUTATIONS[name]
    before: Any = importlib.import_module(f"tfx_largeout.{module}")
    scope: dict[str, Any] = dict(vars(before))
    for part in path.split("."):
        before = vars(before)[part]
    source = textwrap.dedent(inspect.getsource(before))
    for old, new in changes.items():
        assert source.count(old) == 1, f"{name}: {old!r} must stand in {path}, once"
        source = source.replace(old, new)
    exec(compile(source, f"{path} with a mistake", "exec"), scope)
    code, before.__code__ = before.__code__, scope[before.__name__].__code__
    try:
        yield
    finally:
        before.__code__ = code
