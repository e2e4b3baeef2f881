# SPDX-License-Identifier: Apache-2.0
"""Builds the shared library of custom ops with CMake; everything else stands in setup.cfg.

The environment variable TFX_LIBRARY says whether: `auto` builds it where there is a C++ compiler,
and leaves it out, with a warning, where there is none; `on` insists; `off` leaves it out. A build
that fails is an error. A library of an earlier build of the same sources is used again
(custom_ops/build_cache.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "custom_ops"))
import build_cache  # noqa: E402

COMPILERS = ("c++", "g++", "clang++", "icpx")  # of those that CMake looks for


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


def _compiler() -> str:
    """Returns the command of the C++ compiler that CMake takes; nothing without one."""
    return os.environ.get("CXX") or next(filter(_runs, COMPILERS), "")


def _reason_to_leave_out() -> str | None:
    """Says why the library is not to be built, or returns None."""
    wanted = os.environ.get("TFX_LIBRARY", "auto")
    if wanted not in ("auto", "on", "off"):
        raise ValueError(f"TFX_LIBRARY must be auto, on or off; got {wanted!r}")
    if wanted == "off":
        return "TFX_LIBRARY was off"
    if wanted == "on" or _compiler():
        return None  # a CXX that is no compiler is for CMake to refuse
    return f"no C++ compiler was found (none of {', '.join(COMPILERS)} runs, and CXX is not set)"


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
        options = [
            f"-DTFX_WERROR={os.environ.get('TFX_WERROR', 'OFF')}",
            f"-DTFX_CUDA={os.environ.get('TFX_CUDA', 'auto')}",
        ]
        key = build_cache.key(ROOT, _compiler(), options)
        if key is not None and build_cache.restore(key, library.parent):
            self.announce("the library of an earlier build of these sources is used", level=2)
            return
        self._run_cmake(library, options)
        if key is not None:
            build_cache.keep(key, [path for path in _outputs(library) if path.exists()])

    def _run_cmake(self, library: Path, options: list[str]) -> None:
        build = Path(self.build_temp).resolve() / "custom_ops"
        cmake = _program("cmake")
        configure = [
            "--fresh",  # an isolated build has its tools in another folder each time
            *("-S", str(ROOT / "custom_ops"), "-B", str(build), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={_program('ninja')}",
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DTFX_OUTPUT_DIRECTORY={library.parent}",
            *options,
        ]
        subprocess.run([cmake, *configure], check=True)
        jobs = ["--parallel", str(self.parallel)] if self.parallel else []
        subprocess.run([cmake, "--build", str(build), *jobs], check=True)

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
    ext_modules=[Extension("tfx_largeout.ops._tfx_largeout", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
