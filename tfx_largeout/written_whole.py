# SPDX-License-Identifier: Apache-2.0
"""written_whole: a file, or a folder of files, that has its name only when all of it is there."""

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
    """Yields where to write a file or a folder, which then takes the place of `path`.

    It lies in a new folder beside `path`, has its name, is not there yet, and comes to the disk
    before it takes the place of a file, or of a folder that is empty. After an error `path` is as
    before, and nothing else is left. What a killed process has left goes with the next one that
    writes to `path`. A link stays, and what it points to is written. Devices are written as they
    are. `size` is how many bytes it will have at least: where there is no room for them, that is
    said before the first one is written.

    Raises:
        OSError: It can't be written; names `path` where the system names nothing.
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
    """Makes sure that names in a folder outlive a loss of power."""
    _sync(folder)


@contextlib.contextmanager
def _locked_folder(target: Path) -> Iterator[Path]:
    """Makes a folder that nobody takes for an abandoned one, and removes it at the end."""
    while True:
        prefix = f"{UNFINISHED}{target.name}."
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        lock = os.open(folder, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # else another process was sooner, and has removed it
            break
        os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(target: Path) -> None:
    """Removes folders beside a path whose processes are no more: the lock went with them."""
    ours = re.compile(re.escape(f"{UNFINISHED}{target.name}.") + "[a-z0-9_]{8}")  # as of mkdtemp
    try:
        folders = [entry for entry in target.parent.iterdir() if ours.fullmatch(entry.name)]
    except OSError:  # there is no such folder, or it can't be read: what is written says so
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
