# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU computes products in float32, or rounds factors to TF32 first."""

from __future__ import annotations

import warnings

import tensorflow as tf

from tfx_largeout.arguments import choice_argument
from tfx_largeout.devices import has_gpu

PRECISIONS = ("float32", "tf32")

_is_chosen = False


def set_product_precision(precision: str) -> None:
    """Chooses how GPUs multiply float32 matrices: exactly, or faster with TF32.

    TF32 (NVIDIA Ampere and later) rounds both factors to 10 bits after the point and adds up in
    float32: a relative error of 5e-4 per factor instead of 6e-8. TensorFlow enables it by default.
    In this package exact means float32: so its first head, index or product of rows on a GPU
    switches TF32 off, with a warning, unless this function was called before.

    The switch is TensorFlow's, `tf.config.experimental.enable_tensor_float_32_execution`, and
    affects the whole process: other layers and models, too, from the next product on, also in
    functions that are already traced. It does not affect CPUs, float64 and bfloat16.

    Args:
        precision: `"float32"` or `"tf32"`.

    Raises:
        ValueError: `precision` is neither.
    """
    global _is_chosen
    choice_argument("precision", precision, PRECISIONS)
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    _is_chosen = True


def product_precision() -> str:
    """Returns how GPUs multiply float32 matrices at present: `"float32"` or `"tf32"`."""
    return PRECISIONS[tf.config.experimental.tensor_float_32_execution_enabled()]


def keep_float32() -> None:
    """Switches TF32 off if there is a GPU, unless it was chosen; once per process."""
    if _is_chosen or not has_gpu():
        return
    was_on = product_precision() == "tf32"
    set_product_precision("float32")
    if was_on:
        warnings.warn(
            "TF32 has been switched off in this process, for all products of float32 on GPUs: "
            "heads and indexes promise float32. To have it on, and less exact ones, call "
            "tlo.set_product_precision('tf32').",
            RuntimeWarning,
            stacklevel=3,
        )
