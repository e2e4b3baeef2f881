# SPDX-License-Identifier: Apache-2.0
"""written_whole: writes a file or a folder so that it appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

UNFINISHED = "unfinished."


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str], size: int = 0) -> Iterator[Path]:
    """Yields a path to write a file or a folder, which then replaces `path`.

    The yielded path is in a new folder beside `path`, has the same name, and does not exist yet. It
    is flushed to disk before it replaces a file or an empty folder. After an error `path` is
    unchanged, and no other file is left. Files of a killed process are removed by the next process
    that writes to `path`. If `path` is a link, its target is written. Devices are written directly.
    `size` is the least number of bytes: if the disk has less room, an error is raised before
    writing.

    Raises:
        OSError: The path can't be written; the message has `path` if the system's has no name.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file() and not target.is_dir():
        yield target
        return
    _remove_abandoned(target)
    try:
        with _locked_folder(target) as folder:
            _check_room(folder, size)
            yield folder / target.name
            _put_on_disk(folder / target.name)
            os.replace(folder / target.name, target)
            put_names_on_disk(target.parent)
    except OSError as error:
        named = error.filename
        if error.errno is not None and (named is None or UNFINISHED in os.fsdecode(named)):
            error.filename, error.filename2 = str(path), None
        raise


def put_names_on_disk(folder: Path) -> None:
    """Flushes the names in a folder to disk, in case of a power loss."""
    _sync(folder)


@contextlib.contextmanager
def _locked_folder(target: Path) -> Iterator[Path]:
    """Creates a locked folder, which does not count as abandoned, and removes it at the end."""
    while True:
        prefix = f"{UNFINISHED}{target.name}."
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        lock = os.open(folder, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # otherwise another process has already removed it
            break
        os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(target: Path) -> None:
    """Removes folders beside a path whose processes have ended, which released their locks."""
    ours = re.compile(re.escape(f"{UNFINISHED}{target.name}.") + "[a-z0-9_]{8}")  # as of mkdtemp
    try:
        folders = [entry for entry in target.parent.iterdir() if ours.fullmatch(entry.name)]
    except OSError:  # the folder does not exist, or can't be read: writing will raise
        return
    for folder in folders:
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _check_room(folder: Path, size: int) -> None:
    disk, (largest, _) = os.statvfs(folder), resource.getrlimit(resource.RLIMIT_FSIZE)
    room = disk.f_bavail * disk.f_frsize
    if size > room:
        what = f"{os.strerror(errno.ENOSPC)} for {size} bytes, except for {room}"
        raise OSError(errno.ENOSPC, what)
    if largest != resource.RLIM_INFINITY and size > largest:
        what = f"{os.strerror(errno.EFBIG)}: {size} bytes, of {largest} that this process may write"
        raise OSError(errno.EFBIG, what)


def _put_on_disk(path: Path) -> None:
    for folder, _, names in os.walk(path):
        for name in names:
            _sync(Path(folder, name))
        _sync(Path(folder))
    if path.is_file():
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
