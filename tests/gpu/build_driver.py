# SPDX-License-Identifier: Apache-2.0
"""Builds a stand-in for CUDA's libraries, which shows TensorFlow a GPU that does not exist.

python build_driver.py FOLDER    # then LD_LIBRARY_PATH=FOLDER python ...

For tests of our GPU ops: variables are on GPU:0, and ops are placed and launched as on a device.
TensorFlow's GPU kernels do nothing there. Functions that are not in stand_in_driver return 0 and do
nothing; their names are from TensorFlow's headers. Linux.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

SOURCES = Path(__file__).with_name("stand_in_driver")
ASKED_FOR = "tensorflow/compiler/xla/tsl/cuda"  # names of the functions that TensorFlow loads
CUDA = "third_party/gpus/cuda/include"
LIBRARIES = {
    "cuda": "libcuda.so.1",
    "cudart": "libcudart.so.12",
    "cublas": "libcublas.so.12",
    "cublasLt": "libcublasLt.so.12",
    "cudnn": "libcudnn.so.9",
    "cufft": "libcufft.so.11",
    "cupti": "libcupti.so.12",
    "cusolver": "libcusolver.so.11",
    "cusparse": "libcusparse.so.12",
    "nccl": "libnccl.so.2",
    "nvml": "libnvidia-ml.so.1",
}


def build_driver(folder: Path) -> None:
    """Builds all libraries into a folder."""
    include = Path(tf.sysconfig.get_include())
    for library, file in LIBRARIES.items():
        own = SOURCES / f"{library}.c"
        source = (own if own.exists() else SOURCES / "others.c").read_text()
        written = set(re.findall(r"\b(\w+)\(", source))
        asked_for = re.findall(r'"(\w+)"', (include / ASKED_FOR / f"{library}.inc").read_text())
        stubs = [f"int {name}(void) {{ return 0; }}" for name in asked_for if name not in written]
        command = ["gcc", "-shared", "-fPIC", "-w", f"-I{include / CUDA}", "-x", "c", "-"]
        command += ["-o", str(folder / file), f"-Wl,-soname,{file}", "-ldl"]
        subprocess.run(command, input="\n".join([source, *stubs]), text=True, check=True)


if __name__ == "__main__":
    build_driver(Path(sys.argv[1]))
