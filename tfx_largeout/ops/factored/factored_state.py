# SPDX-License-Identifier: Apache-2.0
"""The state of a factored layer: W = V U + 1 w^T, and derived matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.rows.variable_rows import bare_variable

NUM_SLOTS = 8
"""How many coordinate systems the rows of V may be in at a time (see `row_slot`)."""


class FactoredState(NamedTuple):
    """The variables of a factored layer, in the order of the ops' inputs.

    Rows are classes. D is the width of h, with its constant 1 if there is a bias. All floats have
    one dtype T, float32 or float64. For a row r of V in slot e = `row_slot[r]`, the row of W is

        W[r] = V[r] T[e] U + w,   T = transitions, T[current_slot] = I.

    Attributes:
        v: V, `[C, D]`.
        u: U, `[D, D]`.
        u_inverse_transpose: P = U^-T, `[D, D]`.
        gram: Q = W^T W, `[D, D]`, symmetric.
        shift: w, `[D]`.
        row_sum: c = W^T 1, `[D]`.
        transitions: T, `[8, D, D]`: convert a row of each slot to the current coordinates.
        row_slot: `[C]` uint8: the slot of each row of V.
        slot_rows: `[8]` int64: the number of rows in each slot.
        current_slot: `[]` int64: the slot whose rows are in the current coordinates.
    """

    v: Any
    u: Any
    u_inverse_transpose: Any
    gram: Any
    shift: Any
    row_sum: Any
    transitions: Any
    row_slot: Any
    slot_rows: Any
    current_slot: Any

    @property
    def num_classes(self) -> int:
        """C."""
        return self.v.shape[0]

    @property
    def width(self) -> int:
        """D."""
        return self.v.shape[1]

    @property
    def dtype(self) -> tf.DType:
        """T."""
        return tf.as_dtype(self.v.dtype)

    def check(self) -> None:
        """Checks that the variables fit together.

        Raises:
            ValueError: One has a wrong shape.
            TypeError: One has a wrong dtype.
        """
        if len(self.v.shape) != 2 or 0 in self.v.shape:
            raise ValueError(
                f"v must be a matrix [C, D] with C and D at least 1; got shape {self.v.shape}"
            )
        classes, width = self.v.shape
        square, vector = (width, width), (width,)
        shapes = FactoredState(
            v=(classes, width),
            u=square,
            u_inverse_transpose=square,
            gram=square,
            shift=vector,
            row_sum=vector,
            transitions=(NUM_SLOTS, *square),
            row_slot=(classes,),
            slot_rows=(NUM_SLOTS,),
            current_slot=(),
        )
        dtypes = (self.dtype,) * 7 + (tf.uint8, tf.int64, tf.int64)
        for name, variable, shape, dtype in zip(self._fields, self, shapes, dtypes, strict=True):
            if tuple(variable.shape) != shape:
                raise ValueError(f"{name} must have shape {shape}; got {tuple(variable.shape)}")
            if variable.dtype != dtype:
                raise TypeError(
                    f"{name} must be {dtype.name}; got {tf.as_dtype(variable.dtype).name}"
                )

    @property
    def variables(self) -> FactoredState:
        """The same with TensorFlow's variables instead of Keras's."""
        return FactoredState(*(bare_variable(variable) for variable in self))

    @property
    def handles(self) -> list[tf.Tensor]:
        """The resource handles of all variables."""
        return [variable.handle for variable in self.variables]


def unit_transitions(shape: tuple[int, ...], dtype: Any) -> tf.Tensor:
    """Returns the transitions of a state whose rows are all in the current coordinates."""
    return tf.eye(shape[-1], batch_shape=[shape[0]], dtype=tf.as_dtype(dtype))


def all_in_first_slot(num_classes: int) -> np.ndarray:
    """Returns the `slot_rows` of a state whose rows are all in the first slot."""
    return np.array([num_classes] + [0] * (NUM_SLOTS - 1), np.int64)
