# SPDX-License-Identifier: Apache-2.0
"""Builds the shared library of custom ops with CMake; everything else stands in setup.cfg."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"{name} is needed to build tfx_largeout: run `pip install {name}`")
    return path


class CMakeBuild(build_ext):
    """Runs CMake on custom_ops/ and puts library and build record beside tfx_largeout/ops."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"  # no Python ABI in the name: TF loads it

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name)).resolve()
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
        subprocess.run([cmake, *configure], check=True)
        jobs = ["--parallel", str(self.parallel)] if self.parallel else []
        subprocess.run([cmake, "--build", str(build), *jobs], check=True)

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()  # an editable install
        for ext in self.extensions:
            library = Path(self.get_ext_fullpath(ext.name))
            built = Path(self.build_lib, self.get_ext_filename(ext.name))
            for file in (f"{library.stem}.json", f"{library.stem}_gpu.so"):
                source, target = built.with_name(file), library.with_name(file)
                if source.exists() and source.resolve() != target.resolve():
                    shutil.copyfile(source, target)


setup(
    ext_modules=[Extension("tfx_largeout.ops._tfx_largeout", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
