# SPDX-License-Identifier: Apache-2.0
"""Loads the shared library of custom ops on first use, or reports why it can't."""

from __future__ import annotations

import json
import os
import platform
import warnings
from pathlib import Path
from types import ModuleType

import tensorflow as tf

from tfx_largeout.devices import has_gpu
from tfx_largeout.ops.product_precision import keep_float32, product_precision

_LIBRARY = Path(__file__).with_name("_tfx_largeout.so")
_GPU_LIBRARY = Path(__file__).with_name("_tfx_largeout_gpu.so")
_BUILD_RECORD = _LIBRARY.with_suffix(".json")  # by the build: settings, or why `not_built`
_REBUILD = "reinstall it with `pip install --force-reinstall --no-deps .` in its source folder"
_SWITCH = "TFX_LARGEOUT_GPU_KERNELS"
_SLOWER = "Until then the slower TensorFlow-only implementation is used."

_module: ModuleType | None = None
_problem: str | None = None  # why the library is missing; None until a load has failed
_has_gpu_kernels: bool | None = None  # None until a load has been tried


def load() -> ModuleType | None:
    """Returns the module of custom ops, loaded once, or None where it isn't available.

    The first failure warns, in one sentence that says what to do; later calls are silent.
    Setting the environment variable `TFX_LARGEOUT_FORCE_FALLBACK=1` makes it return None without a
    warning, at any time.

    Cost: one `dlopen` on the first call.

    Returns:
        A module with one Python function for each custom op, or None.
    """
    global _module, _problem
    if _forced_fallback():
        return None
    if _module is None and _problem is None:
        _problem = _find_problem()
        if _problem is None:
            try:
                _module = tf.load_op_library(str(_LIBRARY))
            except (tf.errors.NotFoundError, OSError) as error:
                _problem = _explain_load_error(str(error))
        if _problem is not None:
            warnings.warn(f"{_problem} {_SLOWER}", RuntimeWarning, stacklevel=2)
    return _module


def load_gpu_kernels() -> bool:
    """Loads the GPU kernels of the custom ops once, if they were built; returns whether they are.

    Their products are float32 from then on, unless TF32 was chosen: `keep_float32`. With the
    environment variable `TFX_LARGEOUT_GPU_KERNELS=0` they are not used. With 1, or the path of
    their library, a failed load raises an error; otherwise it gives a warning.

    Raises:
        RuntimeError: They are required and can't be loaded.
    """
    global _has_gpu_kernels
    if _has_gpu_kernels is None:
        asked = os.environ.get(_SWITCH, "")
        path = _GPU_LIBRARY if asked in ("", "0", "1") else Path(asked)
        wanted = asked != "0" and (bool(asked) or path.exists()) and load() is not None
        _has_gpu_kernels = wanted and _load_gpu_library(path, asked)
        if _has_gpu_kernels:
            keep_float32()
    return _has_gpu_kernels


def _load_gpu_library(path: Path, asked: str) -> bool:
    try:
        tf.load_library(str(path))
    except (tf.errors.NotFoundError, OSError) as error:
        if asked:
            raise RuntimeError(
                f"{_SWITCH} must be 0, 1 or the path of the library of GPU kernels, which a build "
                f"with nvcc makes; got {asked!r}: {error}"
            ) from error
        message = f"tfx_largeout's GPU kernels can't be loaded ({error}): {_REBUILD}. {_SLOWER}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return False
    return True


def library_status() -> str:
    """Returns which implementation of the custom ops is in use, on which device, and why.

    Cost: loads the library if that has not been tried yet.

    Returns:
        A text, such as `custom ops loaded (TensorFlow 2.21.0, avx512)`; with a GPU, also what runs
        on it.
    """
    module = load()
    if module is not None:
        status = f"custom ops loaded (TensorFlow {tf.__version__}, {instruction_set()})"
    elif _forced_fallback():
        status = "custom ops switched off by TFX_LARGEOUT_FORCE_FALLBACK"
    else:
        status = _problem or "custom ops not loaded"
    return f"{status}; {_status_of_gpu()}" if has_gpu() else status


def _status_of_gpu() -> str:
    products = f"GPU products of float32 are {product_precision()}"
    if load_gpu_kernels():
        return (
            "on the GPU by kernels of the package: exact evaluation, training of ExactSoftmaxHead, "
            "FactoredHead and SampledHead, hash indexes; by TensorFlow's ops: MIDX, embeddings, "
            "heads over several workers, float64; InvertedFile and RowBounds look at all classes; "
            f"{products}"
        )
    if os.environ.get(_SWITCH) == "0":
        why = f"{_SWITCH} is 0"
    elif _GPU_LIBRARY.exists():
        why = "the custom ops or their GPU kernels can't be loaded"
    else:
        why = f"there was no nvcc when it was installed: with one on the PATH, {_REBUILD}"
    return f"heads on the GPU run on TensorFlow's ops, slower, as {why}; {products}"


def instruction_set() -> str | None:
    """Returns the instruction set that the custom ops use, or None without the library.

    `baseline`, `avx2`, `avx512` or `avx512_bf16`: the best one of the processor, or the value of
    the environment variable `TFX_LARGEOUT_ISA`.

    Returns:
        The name, or None.

    Raises:
        InvalidArgumentError: `TFX_LARGEOUT_ISA` is unknown or not supported by the processor.
    """
    module = load()
    if module is None:
        return None
    with tf.init_scope():  # outside of a traced tf.function
        return module.tfx_instruction_set().numpy().decode()


def build_record() -> dict[str, str]:
    """Returns what the library was built with (`tensorflow`, `compiler`), or an empty dict."""
    try:
        return dict(json.loads(_BUILD_RECORD.read_text()))
    except (OSError, ValueError):
        return {}


def _forced_fallback() -> bool:
    return os.environ.get("TFX_LARGEOUT_FORCE_FALLBACK", "0") not in ("", "0")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _find_problem() -> str | None:
    """Runs the checks that are possible before dlopen; returns a sentence or None."""
    if platform.system() not in ("Linux", "Darwin"):
        return (
            "tfx_largeout has no custom ops for "
            f"{platform.system()}: use Linux (on Windows: WSL 2)."
        )
    record = build_record()
    if "not_built" in record:
        return (
            f"tfx_largeout was installed without its shared library, as {record['not_built']}: "
            f"install a C++17 compiler and {_REBUILD}."
        )
    if not _LIBRARY.exists():
        return f"tfx_largeout's shared library {_LIBRARY} is missing: {_REBUILD}."
    built_with = record.get("tensorflow")
    if built_with is None:
        return (
            f"tfx_largeout's build record {_BUILD_RECORD} is missing or not readable: {_REBUILD}."
        )
    if _minor(built_with) != _minor(tf.__version__):
        return _wrong_version(built_with)
    return None


def _wrong_version(built_with: str) -> str:
    return (
        f"tfx_largeout was built for TensorFlow {_minor(built_with)} but TensorFlow "
        f"{tf.__version__} is installed: run `pip install 'tensorflow~={_minor(built_with)}.0'`, "
        f"or {_REBUILD}, which builds it for the TensorFlow that is installed."
    )


def _explain_load_error(error: str) -> str:
    if "undefined symbol" in error or "Symbol not found" in error:
        built_with = build_record().get("tensorflow", "another version")
        return (
            f"tfx_largeout was built against TensorFlow {built_with}, whose symbols the installed "
            f"TensorFlow {tf.__version__} does not have: {_REBUILD}."
        )
    first_line = error.strip().splitlines()[0] if error.strip() else "unknown reason"
    return f"tfx_largeout's shared library can't be loaded ({first_line}): {_REBUILD}."
