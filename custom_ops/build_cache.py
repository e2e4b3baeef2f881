# SPDX-License-Identifier: Apache-2.0
"""BuildCache: reuses what was built before on this machine.

An entry is a folder `<digest of the sources>` in the user's cache folder, with the built files and
their digests in `digests.json`. It is written under another name and then renamed, so that neither
a killed build nor two builds at a time leave a partial entry. Files with another digest are built
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

_DIGESTS, _MOST_ENTRIES = "digests.json", 8
_DAY = 24 * 3600.0


class BuildCache:
    """The entry of one build.

    Args:
        sources: The folder of all sources.
        facts: What else the result depends on: compiler, flags, versions.
        folder: Of all entries. Default: `tfx_largeout` in the user's cache folder.
    """

    def __init__(self, sources: Path, facts: Mapping[str, str], folder: Path | None = None) -> None:
        self._folder = folder or _user_folder() / "tfx_largeout"
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for file in sorted(path for path in sources.rglob("*") if path.is_file()):
            if file.suffix == ".pyc":
                continue
            digest.update(f"{file.relative_to(sources)} {_digest_of(file)}\n".encode())
        self._entry = self._folder / digest.hexdigest()

    def fetch(self, folder: Path) -> bool:
        """Copies the files of the entry into a folder; returns whether there is one, undamaged."""
        try:
            wanted = json.loads((self._entry / _DIGESTS).read_text())
            if any(_digest_of(self._entry / name) != digest for name, digest in wanted.items()):
                return False
            folder.mkdir(parents=True, exist_ok=True)
            for name in wanted:
                shutil.copyfile(self._entry / name, folder / name)
            os.utime(self._entry)  # was used now
        except (OSError, ValueError, AttributeError):
            return False
        return True

    def store(self, files: Iterable[Path]) -> None:
        """Keeps files as the entry; where that can't be, there is none."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix="unfinished-") as unfinished:
                new = Path(unfinished) / "entry"
                new.mkdir()
                digests = {}
                for file in files:
                    shutil.copyfile(file, new / file.name)
                    digests[file.name] = _digest_of(new / file.name)
                (new / _DIGESTS).write_text(json.dumps(digests))
                shutil.rmtree(self._entry, ignore_errors=True)  # a damaged one
                new.rename(self._entry)
            self._thin_out()
        except OSError:
            pass

    def _thin_out(self) -> None:
        unfinished = set(self._folder.glob("unfinished-*"))  # of builds that run or were killed
        old = [path for path in unfinished if path.stat().st_mtime < time.time() - _DAY]
        entries = sorted(set(self._folder.iterdir()) - unfinished, key=lambda e: e.stat().st_mtime)
        for path in [*old, *entries[:-_MOST_ENTRIES]]:
            shutil.rmtree(path, ignore_errors=True)


def _digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
