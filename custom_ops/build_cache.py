# SPDX-License-Identifier: Apache-2.0
"""Libraries of earlier builds, for setup.py: one folder an entry, in $XDG_CACHE_HOME/tfx_largeout.

An entry holds the files that a build made and `digests.json`, the SHA-256 of each. It is written
under another name and renamed, and is not used where a digest differs. A cache that can't be read
or written is no error. TFX_CACHE=off does without.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

ENTRIES = 8  # the last used that are kept
DIGESTS = "digests.json"
# Variables that CMake and compilers heed, by how they begin.
VARIABLES = ("C_", "CC", "CMAKE_", "CPATH", "CPLUS_", "CPP", "CUDA", "CXX", "GCC_", "LDFLAGS")
VARIABLES += ("LIBRARY_PATH", "MACOSX_", "NVCC")
GPU = ("/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")  # as gpu_kernels.cmake


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _version(command: str) -> str:
    words = shlex.split(command)
    path = shutil.which(words[0]) if words else None
    if path is None:
        return ""
    run = subprocess.run([path, *words[1:], "--version"], capture_output=True, text=True)
    return f"{path} {run.stdout}"


def key(root: Path, compiler: str, options: list[str]) -> str | None:
    """Returns a digest of all that a build depends on; None where there is to be no cache.

    root is the clone's folder, compiler a command, options are CMake's. TensorFlow is known by the
    digest of its library that pip recorded, as its import takes seconds.
    """
    wanted = os.environ.get("TFX_CACHE", "on")
    if wanted not in ("on", "off"):
        raise ValueError(f"TFX_CACHE must be on or off; got {wanted!r}")
    try:
        files = metadata.files("tensorflow") or []
    except metadata.PackageNotFoundError:
        return None
    names = ("libtensorflow_framework", "libtensorflow_cc", "build_info.py")
    tensorflow = sorted(f"{f} {f.hash.value}" for f in files if f.hash and f.name.startswith(names))
    if wanted == "off" or not tensorflow:
        return None
    variables = sorted(item for item in os.environ.items() if item[0].startswith(VARIABLES))
    machine = [platform.system(), platform.machine(), *platform.libc_ver()]
    compilers = [_version(compiler), _version(os.environ.get("CUDACXX") or "nvcc")]
    gpu = any(map(os.path.exists, GPU))
    facts = [
        metadata.version("tensorflow"),
        tensorflow,
        machine,
        compilers,
        gpu,
        options,
        variables,
    ]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for path in [root / "setup.py", *sorted((root / "custom_ops").rglob("*"))]:
        name = path.relative_to(root)
        if path.is_file() and not {"tests", "__pycache__"}.intersection(name.parts):
            digest.update(f"{name.as_posix()} {_digest(path.read_bytes())}\n".encode())
    return digest.hexdigest()


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tfx_largeout")


def restore(entry: str, target: Path) -> bool:
    """Copies the files of an entry into target, a folder; says whether it was there, whole."""
    try:
        source = _folder() / entry
        digests = json.loads((source / DIGESTS).read_text())
        contents = {name: (source / name).read_bytes() for name in digests}
        if not contents or {name: _digest(c) for name, c in contents.items()} != digests:
            return False
    except (OSError, RuntimeError, TypeError, ValueError):  # RuntimeError: there is no home
        return False
    with contextlib.suppress(OSError):
        os.utime(source)  # used now
    target.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (target / name).write_bytes(content)
    return True


def keep(entry: str, files: list[Path]) -> None:
    """Makes an entry of files, in place of one of that name, and drops those not used for long."""
    with contextlib.suppress(OSError, RuntimeError):
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as work:
            new = Path(work, "new")
            new.mkdir()
            contents = {file.name: file.read_bytes() for file in files}
            for name, content in contents.items():
                (new / name).write_bytes(content)
            (new / DIGESTS).write_text(json.dumps({n: _digest(c) for n, c in contents.items()}))
            with contextlib.suppress(FileNotFoundError):
                (folder / entry).rename(Path(work, "old"))  # damaged, or of a build beside this one
            new.rename(folder / entry)
        for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-ENTRIES]:
            shutil.rmtree(path, ignore_errors=True)
