# SPDX-License-Identifier: Apache-2.0
"""Builds the shared library of custom ops with CMake; everything else stands in setup.cfg.

The environment variable TFX_LIBRARY says whether: `auto` builds it where there is a C++ compiler,
and leaves it out, with a warning, where there is none; `on` insists; `off` leaves it out. A build
that fails is an error. What was built once from the same sources, with the same compiler and
TensorFlow, comes from a cache (custom_ops/build_cache.py), unless TFX_CACHE is off.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "custom_ops"))
from build_backend import SUPPORTED, find_tensorflow  # noqa: E402
from build_cache import BuildCache  # noqa: E402

TENSORFLOW = find_tensorflow()
COMPILERS = ("c++", "g++", "clang++", "icpx")  # among the ones that CMake tries


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"{name} is needed to build tfx_largeout: run `pip install {name}`")
    return path


def _runs(compiler: str) -> bool:
    # macOS has a c++ that does nothing but say how to install one.
    path = shutil.which(compiler)
    if path is None:
        return False
    return subprocess.run([path, "--version"], capture_output=True).returncode == 0


def _reason_to_leave_out() -> str | None:
    """Says why the library is not to be built, or returns None."""
    wanted = os.environ.get("TFX_LIBRARY", "auto")
    if wanted not in ("auto", "on", "off"):
        raise ValueError(f"TFX_LIBRARY must be auto, on or off; got {wanted!r}")
    if wanted == "off":
        return "TFX_LIBRARY was off"
    if wanted == "on" or os.environ.get("CXX") or any(map(_runs, COMPILERS)):
        return None  # an invalid CXX is left to CMake's error
    return f"no C++ compiler was found (none of {', '.join(COMPILERS)} runs, and CXX is not set)"


def _version(program: str) -> str:
    """Returns what a compiler says of itself; empty where there is none."""
    path = shutil.which(program)
    if path is None:
        return ""
    return path + subprocess.run([path, "--version"], capture_output=True, text=True).stdout


def _cache() -> BuildCache | None:
    """Returns the entry of this build, or None if there is to be none."""
    if os.environ.get("TFX_CACHE") == "off" or TENSORFLOW is None:
        return None
    # With the digest of the library that ours is linked with.
    linked = [line for line in TENSORFLOW.record.splitlines() if "libtensorflow_framework" in line]
    names = ("CXX", "CXXFLAGS", "LDFLAGS", "CUDACXX", "CUDAARCHS", "TFX_WERROR", "TFX_CUDA")
    facts = {name: os.environ.get(name, "") for name in names}
    for program in (*COMPILERS, "nvcc", facts["CXX"], facts["CUDACXX"]):
        facts[f"{program} --version"] = _version(program)
    facts |= {"tensorflow": "\n".join([TENSORFLOW.minor, *linked]), "machine": platform.machine()}
    return BuildCache(ROOT / "custom_ops", facts)


def _requirement() -> str:
    """Returns the TensorFlow that the package needs: with a library that for which it is built."""
    if "sdist" in sys.argv or TENSORFLOW is None or _reason_to_leave_out() is not None:
        first, last = SUPPORTED[0], SUPPORTED[-1]
        major, minor = last.split(".")
        return f"tensorflow>={first},<{major}.{int(minor) + 1}"
    return f"tensorflow~={TENSORFLOW.minor}.0"


def _outputs(library: Path) -> list[Path]:
    """Returns the library, its build record, and the library of GPU kernels."""
    return [library, library.with_suffix(".json"), library.with_name(f"{library.stem}_gpu.so")]


class CMakeBuild(build_ext):
    """Runs CMake on custom_ops/ and puts library and build record beside tfx_largeout/ops."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"  # no Python ABI in the name: TF loads it

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
        reason = _reason_to_leave_out()
        for path in _outputs(library):
            path.unlink(missing_ok=True)  # of an earlier build
        if reason is not None:
            self._leave_out(ext, library, reason)
            return
        cache = _cache()
        if cache is not None and cache.fetch(library.parent):
            return
        build = Path(self.build_temp).resolve() / "custom_ops"
        cmake = _program("cmake")
        configure = [
            "--fresh",  # an isolated build has its tools in another folder each time
            *("-S", str(ROOT / "custom_ops"), "-B", str(build), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={_program('ninja')}",
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DTFX_OUTPUT_DIRECTORY={library.parent}",
            f"-DTFX_WERROR={os.environ.get('TFX_WERROR', 'OFF')}",
            f"-DTFX_CUDA={os.environ.get('TFX_CUDA', 'auto')}",
        ]
        if TENSORFLOW is not None and TENSORFLOW.folder not in sys.path:
            # The environment's TensorFlow; pip hides it from a build by this variable.
            configure.append("-DTFX_PYTHON_ENVIRONMENT=--unset=PYTHONPATH")
        subprocess.run([cmake, *configure], check=True)
        jobs = ["--parallel", str(self.parallel)] if self.parallel else []
        subprocess.run([cmake, "--build", str(build), *jobs], check=True)
        if cache is not None:
            cache.store(path for path in _outputs(library) if path.exists())

    def _leave_out(self, ext: Extension, library: Path, reason: str) -> None:
        ext.optional = True  # for setuptools: there may be nothing to copy
        library.parent.mkdir(parents=True, exist_ok=True)
        library.with_suffix(".json").write_text(json.dumps({"not_built": reason}))
        self.warn(
            f"tfx_largeout is installed without its library of custom ops: {reason}. Everything "
            "runs on TensorFlow's own ops, more slowly. For the library, install a C++17 compiler "
            "and then this package again; TFX_LIBRARY=on makes its absence an error."
        )

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()  # an editable install
        for ext in self.extensions:
            library = Path(self.get_ext_fullpath(ext.name))
            built = Path(self.build_lib, self.get_ext_filename(ext.name))
            for source, target in zip(_outputs(built), _outputs(library), strict=True):
                if source.resolve() == target.resolve():
                    continue
                if source.exists():
                    shutil.copyfile(source, target)
                else:
                    target.unlink(missing_ok=True)


setup(
    install_requires=[
        _requirement(),
        "keras>=3.12,<4",
        "numpy>=1.26",
        "tensorflow-datasets>=4.9.7",
        # tensorflow-datasets needs it; newer ones dropped Python 3.10, older pips search long.
        'etils<1.14; python_version<"3.11"',
    ],
    ext_modules=[Extension("tfx_largeout.ops._tfx_largeout", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
