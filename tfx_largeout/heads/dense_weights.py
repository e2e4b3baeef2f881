# SPDX-License-Identifier: Apache-2.0
"""DenseWeights: get and set W and b of a head as arrays or as a Dense layer."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import flag_argument, full_name
from tfx_largeout.distribute.meeting import agree, together
from tfx_largeout.heads.base import Head
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.saving import get_initializer


class DenseWeights(Head):
    """A head whose logits are W h + b, with any W `[C, D]` and b `[C]`.

    A subclass defines `weights_as_arrays` and `start_from`.
    """

    rows: ClassRows

    def __init__(
        self,
        num_classes: int,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, **kwargs)
        self.use_bias = flag_argument("use_bias", use_bias)
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)

    def materialize(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns W `[C, D]` and b `[C]` (None without bias), in the dtype of the head's weights.

        Cost: a copy of W; for a `FactoredHead` O(C D^2).

        Raises:
            RuntimeError: The classes are spread over several workers.
            ValueError: The head is not built.
        """
        self._require_built()
        self.workers.refuse_several(
            f"materialize and to_dense of {full_name(self)} must be called in a single process; "
            f"got classes that are spread over {self.workers.size} workers. A "
            "tlo.callbacks.Checkpoint brings them into one process: see "
            "docs/guides/several_workers.md"
        )
        return self.weights_as_arrays()

    def to_dense(self, **kwargs: Any) -> keras.layers.Dense:
        """Returns a `keras.layers.Dense` with the same W (transposed, as in Dense) and b.

        Cost: as `materialize`; memory for two more W.

        Args:
            **kwargs: Arguments of `Dense`, such as `activation` and `name`. The default dtype is
                the head's, or for a `FactoredHead` the dtype of its state.

        Raises:
            RuntimeError, ValueError: As `materialize`.
        """
        kernel, bias = self.materialize()
        kwargs = {"dtype": self.dense_dtype, "trainable": self.trainable, **kwargs}
        dense = keras.layers.Dense(self.num_classes, use_bias=self.use_bias, **kwargs)
        dense.build((None, self.width))
        dense.set_weights([kernel.T] if bias is None else [kernel.T, bias])
        return dense

    def set_dense_weights(self, kernel: Any, bias: Any = None) -> None:
        """Replaces W and b. The count of steps and the slots of the optimizer are kept.

        Several workers must call it together, with the same weights.

        Cost: a copy of W; for a `FactoredHead`, which then has V = W and U = I, O(C D^2).

        Args:
            kernel: W, `[C, D]`; for a Dense layer, `np.transpose(dense.kernel)`.
            bias: b, `[C]`; required with `use_bias`, else not allowed.

        Raises:
            ValueError: The head is not built; a shape is wrong; a number is not real and finite;
                `bias` without `use_bias`, or `use_bias` without `bias`; or workers were given
                different weights. The weights are unchanged then.
        """
        self._require_built()
        kernel, bias = together(
            self.workers.everyone, self.name, lambda: self._checked(kernel, bias)
        )
        check_sum = functools.partial(_check_sum, kernel, bias)
        agree(self.workers.everyone, self.name, {"a check sum of kernel and bias": check_sum})
        own = self.rows.shard.own
        self.start_from(own(kernel), None if bias is None else own(bias))

    @property
    def weights_with_rows(self) -> list[Any]:
        """The weights with one row per class; all rows are on this worker."""
        raise NotImplementedError

    def set_last_rows(self, first: int, kernel: np.ndarray | None, bias: np.ndarray | None) -> None:
        """Checks and sets W and b of the classes from `first` on; None: unchanged."""
        raise NotImplementedError

    def after_other_rows(self, first: int) -> None:
        """Is called after classes below `first` were given rows of another head."""

    def weights_as_arrays(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns W and b of all classes."""
        raise NotImplementedError

    def start_from(self, kernel: np.ndarray, bias: np.ndarray | None) -> None:
        """Replaces the rows of W and b that are on this worker; they have been checked."""
        raise NotImplementedError

    @property
    def weights_dtype(self) -> str:
        """The dtype in which the head keeps W and b."""
        return self.variable_dtype

    @property
    def dense_dtype(self) -> Any:
        """The dtype or policy of a Dense layer that computes as the head does."""
        return self.dtype_policy

    def _checked(self, kernel: Any, bias: Any) -> tuple[np.ndarray, np.ndarray | None]:
        kernel = self.finite_argument("kernel", kernel, (self.num_classes, self.width))
        if (bias is not None) != self.use_bias:
            raise ValueError(f"bias must be given with use_bias, and only then; got {bias!r}")
        if bias is not None:
            bias = self.finite_argument("bias", bias, (self.num_classes,))
        return kernel, bias

    def finite_argument(self, name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a finite array of a shape in the dtype of the head's weights, or raises."""
        given = np.asarray(values)
        if given.dtype.kind not in "iufV":  # bfloat16 is of kind V
            raise ValueError(f"{name} must be real numbers; got dtype {given.dtype}")
        with np.errstate(over="ignore"):
            array = np.asarray(given, tf.as_dtype(self.weights_dtype).as_numpy_dtype)
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name} must be finite in {self.weights_dtype}; got "
                f"{given[~np.isfinite(array)].flat[0]}"
            )
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got {array.shape}")
        return array

    def _require_built(self) -> None:
        if not self.built:
            raise ValueError(
                f"{full_name(self)} must be built before its weights are read or set; got one that "
                "is not. Call it, or head.build((None, D))."
            )


def _check_sum(*arrays: np.ndarray | None) -> int:
    check_sum = 0
    for array in arrays:
        if array is not None:
            data = np.ascontiguousarray(array).view(np.uint8).data
            check_sum = zlib.crc32(data, check_sum)
    return check_sum
