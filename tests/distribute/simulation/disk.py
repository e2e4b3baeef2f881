# SPDX-License-Identifier: Apache-2.0
"""A disk that all simulated workers share: written data, and the rest after a loss of power.

A file has what was written to it, and of that what is on the disk; so have names. Each write, fsync
and change of a name is a point at which a process may be killed.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import io
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

from distribute.simulation.network import World

from tfx_largeout import written_whole
from tfx_largeout.callbacks import checkpoint_file, checkpoint_folder

FOLDER = "/simulated"  # nowhere, so that what goes past this disk fails


class Inode:
    """A file: its bytes, the bytes on the disk, and whether a loss of power undid its removal."""

    def __init__(self) -> None:
        self.data = self.durable = b""
        self.came_back = False


class Disk:
    """The files of one folder.

    Attributes:
        names: The file of each name.
        changed: Called when names have changed.
        full: By rank, the write from which on the disk is full; 1 is the next.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: dict[str, Inode] = {}
        self.changed: Callable[[], None] = lambda: None
        self.full: dict[int, int] = {}
        self._durable: dict[str, Inode] = {}
        self._pending: list[dict[str, Inode | None]] = []  # changes of names not yet on the disk

    def change(self, names: dict[str, Inode | None]) -> None:
        self._pending.append(names)
        _apply(self.names, names)
        self.changed()

    def names_on_disk(self) -> None:
        self._pending.clear()
        self._durable = dict(self.names)

    def lose_power(self) -> None:
        """Keeps flushed data; of the rest any part: parts of files, some names."""
        chance = self.world.random
        in_order = chance.random() < 0.5
        for change in self._pending:
            if chance.random() < 0.5:
                _apply(self._durable, change)
            elif in_order:
                break
        before, self.names = set(self.names.values()), dict(self._durable)
        self._pending.clear()
        for inode in self.names.values():
            inode.came_back |= inode not in before
            if inode.data != inode.durable:
                inode.data = inode.data[: chance.randint(0, len(inode.data))]
            inode.durable = inode.data
        self.changed()

    @contextlib.contextmanager
    def in_place_of_the_real_one(self) -> Iterator[None]:
        """Within it checkpoints are written here, to `SimulatedPath(FOLDER)`."""
        SimulatedPath.disk = self
        of_file = {name: getattr(zipfile, name) for name in ("ZIP_STORED", "BadZipFile")}
        checkpoint_file.os = written_whole.os = SimpleNamespace(
            fsync=self._fsync,
            replace=lambda path, target: path.rename(target),
            open=lambda folder, flags: folder,
            close=lambda folder: None,
            O_RDONLY=os.O_RDONLY,
        )
        checkpoint_file.zipfile = SimpleNamespace(ZipFile=_zip_file, **of_file)
        checkpoint_folder.os = SimpleNamespace(urandom=self.world.random.randbytes)
        try:
            yield
        finally:
            checkpoint_file.os = written_whole.os = checkpoint_folder.os = os
            checkpoint_file.zipfile = zipfile

    def _fsync(self, what: Any) -> None:
        self.point(f"fsync {what}")
        if isinstance(what, File):
            what.inode.durable = what.inode.data
        else:
            self.names_on_disk()

    def point(self, what: str) -> None:
        assert self.world.running is not None
        self.world.running.point("disk", what)


def _apply(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        names.pop(name, None)
        if inode is not None:
            names[name] = inode


class File(io.BytesIO):
    """A file that is being written: in memory until it is flushed."""

    def __init__(self, disk: Disk, name: str, inode: Inode) -> None:
        super().__init__()
        self.disk, self.name, self.inode = disk, name, inode
        self.process = disk.world.running

    def __str__(self) -> str:
        return self.name

    def fileno(self) -> Any:
        return self  # for `os.fsync`, in its place

    def flush(self) -> None:
        process = self.process
        if process.killed or self.inode.data == self.getvalue():
            return
        self.disk.point(f"write {self.name}")
        if self.disk.full.get(process.rank, 0) == 1:
            self.inode.data = self.getvalue()[: len(self.inode.data) + 10]
            raise OSError(errno.ENOSPC, "No space left on device", self.name)
        self.disk.full[process.rank] = self.disk.full.get(process.rank, 0) - 1
        self.inode.data = self.getvalue()

    def __del__(self) -> None:
        """Writes nothing: data that a killed process had not written are lost."""

    def close(self) -> None:
        if not self.closed:
            self.flush()
        super().close()


class SimulatedPath(PurePosixPath):
    """The part of `pathlib.Path` that the package uses."""

    disk: Any = None

    def _names(self, what: str) -> dict[str, Inode]:
        self.disk.point(f"{what} {self.name}")
        return self.disk.names

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        self._names("mkdir")

    def glob(self, pattern: str) -> list[SimulatedPath]:
        names = self._names(f"list {pattern} of")
        return [self / name for name in sorted(names) if fnmatch.fnmatch(name, pattern)]

    def is_file(self) -> bool:
        return self.name in self._names("is there")

    def open(self, mode: str) -> Any:
        names = self._names(f"open {mode}")
        if mode == "rb":
            return io.BytesIO(self._inode(names).data)
        self.disk.change({self.name: Inode()})
        return File(self.disk, self.name, names[self.name])

    def unlink(self, missing_ok: bool = False) -> None:
        names = self._names("unlink")
        if not missing_ok or self.name in names:
            self._inode(names)
            self.disk.change({self.name: None})

    def rename(self, target: SimulatedPath) -> None:
        names = self._names(f"rename to {target.name}:")
        self.disk.change({target.name: self._inode(names), self.name: None})

    def _inode(self, names: dict[str, Inode]) -> Inode:
        if self.name not in names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
        return names[self.name]


def _zip_file(file: Any, *arguments: Any, **options: Any) -> zipfile.ZipFile:
    file = file.open("rb") if isinstance(file, SimulatedPath) else file
    return zipfile.ZipFile(file, *arguments, **options)
