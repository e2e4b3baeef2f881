# SPDX-License-Identifier: Apache-2.0
"""Which implementation of an op runs: the custom op, or TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import tensorflow as tf

from tfx_largeout.arguments import choice_argument
from tfx_largeout.devices import is_on_gpu
from tfx_largeout.ops import library
from tfx_largeout.ops.product_precision import keep_float32

IMPLEMENTATIONS = ("auto", "op", "composed")


def op_module(
    implementation: str,
    op: str,
    name: str,
    weights: tf.Tensor | tf.Variable,
    dtypes: Sequence[tf.DType],
    gpu_dtypes: Sequence[tf.DType] = (),
    multiplies: bool = True,
) -> ModuleType | None:
    """Returns the module of custom ops if it should be used for some weights, else None.

    Args:
        implementation: See `ops`, which has the errors, too.
        op: The op's name in the module.
        name: The name of the weights, for errors.
        weights: The weights that the op reads or changes in place.
        dtypes: The dtypes that the op supports.
        gpu_dtypes: The dtypes of its GPU kernel, if it exists and is loaded.
        multiplies: Whether the op multiplies matrices, in float32 on a GPU: `keep_float32`.
    """
    choice_argument("implementation", implementation, IMPLEMENTATIONS)
    if multiplies and is_on_gpu(weights):
        keep_float32()
    if implementation == "composed":
        return None
    insist = implementation == "op"
    if weights.dtype not in dtypes:
        if insist:
            names = " or ".join(dtype.name for dtype in dtypes)
            raise TypeError(
                f"{name} must be {names} for implementation='op'; got dtype {weights.dtype.name}"
            )
        return None
    if not insist and is_on_gpu(weights) and not _has_gpu_kernel(weights, gpu_dtypes):
        return None  # a CPU kernel can't lock a variable on another device
    module = library.load()
    if module is not None and not hasattr(module, op):
        module = None
    if module is None and insist:
        raise RuntimeError(f"implementation='op' can't be used: {library.library_status()}")
    return module


def _has_gpu_kernel(weights: tf.Tensor | tf.Variable, dtypes: Sequence[tf.DType]) -> bool:
    return weights.dtype in dtypes and library.load_gpu_kernels()
