# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint that several workers write: all of them count, or none."""

from __future__ import annotations

import functools
import hashlib
import os
import struct
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.callbacks.checkpoint_file import NamedArray, write_checkpoint
from tfx_largeout.distribute.meeting import SAVE, meet, together
from tfx_largeout.distribute.workers import Workers

PART = ".part"  # the end of the name of the file of one worker
_SITE = "the files of a checkpoint"
_DIGEST = struct.Struct(">4q")


def write_files(
    workers: Workers,
    path: Path,
    facts: dict[str, Any],
    own_facts: dict[str, Any],
    arrays: Sequence[NamedArray],
    own_arrays: Sequence[NamedArray],
    rows: Set[str],
) -> None:
    """Writes a file of each worker, and when all are on the disk, that of what they share.

    The last one names the others with their digests. Until it has its name there is no such
    checkpoint, and the files of one that it replaces are as they were: names of files come up once.

    Each worker writes its rows, and those arrays that are not the same everywhere.

    Args:
        workers: More than one.
        path: The path of the file of what they share.
        facts: What JSON can hold, the same on all workers.
        own_facts: What is this worker's own.
        arrays: Names, and functions that give the arrays: the same names on all workers.
        own_arrays: Those that are this worker's own.
        rows: The names of the arrays of which each worker has its rows.

    Raises:
        OSError: A worker can't write its file, on all workers. There is no such checkpoint then.
    """
    number = int.from_bytes(os.urandom(4), "big")
    number = int(meet(workers, SAVE, _SITE, numbers=[number]).numpy()[0, 0])
    names = [
        f"{path.stem}-{number:08x}-{rank}-of-{workers.size}{PART}" for rank in range(workers.size)
    ]
    alike = _alike(workers, [(name, get) for name, get in arrays if name not in rows])
    own = [(name, get) for name, get in arrays if name not in alike]
    part = path.with_name(names[workers.rank])
    write = functools.partial(write_file, part, own_facts, [*own, *own_arrays])
    try:
        digest = together(workers, _SITE, write)
        numbers = _DIGEST.unpack(bytes.fromhex(digest))
        heard = meet(workers, SAVE, _SITE, numbers=numbers).numpy()
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    digests = [_DIGEST.pack(*said.tolist()).hex() for said in heard]

    def write_shared() -> None:
        if workers.rank == 0:
            _check_there(path.parent, names)
            parts = list(zip(names, digests, strict=True))
            shared = [(name, get) for name, get in arrays if name in alike]
            write_checkpoint(path, {**facts, "rows": sorted(rows), "parts": parts}, shared)

    together(workers, _SITE, write_shared)


def write_file(path: Path, facts: dict[str, Any], arrays: Sequence[NamedArray]) -> str:
    """Writes one file, in a folder that need not be there; returns its digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_checkpoint(path, facts, arrays)


def _alike(workers: Workers, arrays: Sequence[NamedArray]) -> set[str]:
    """Returns the names of arrays that are the same on all workers."""
    if not arrays:
        return set()
    said = tf.constant([_first_of_digest(get()) for _, get in arrays], tf.int64)
    heard = workers.gather(said, "digests").numpy()
    same = (heard == heard[0]).all(axis=0)
    return {name for (name, _), is_same in zip(arrays, same, strict=True) if is_same}


def _first_of_digest(array: np.ndarray) -> int:
    digest = hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).data)
    return int(_DIGEST.unpack(digest.digest())[0])


def _check_there(folder: Path, names: Sequence[str]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise OSError(
            "the folder of Checkpoint must be one that all workers share; got none of "
            f"{missing} in {folder} on worker 0"
        )
