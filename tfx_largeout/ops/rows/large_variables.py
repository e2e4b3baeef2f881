# SPDX-License-Identifier: Apache-2.0
"""Variables too large for a second copy: read, written and saved in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.keras_internals import h5_dataset, variable_behind
from tfx_largeout.memory import Weight
from tfx_largeout.ops.rows.variable_rows import gather, ids_between, scatter_update

_LARGE = 2**26  # bytes above which copies are avoided
_BLOCK = 2**24  # bytes read at a time


def read_rows(variable: tf.Variable, first: int, end: int) -> np.ndarray:
    """Returns rows of a variable without copying it.

    After rows of a variable were gathered, TensorFlow copies it whenever it is read whole. So a
    variable that is trained as a whole is read, which is no copy; from any other, rows are
    gathered.
    """
    if variable.trainable:
        return np.asarray(variable.read_value())[first:end]
    return gather(variable, ids_between(first, min(end, int(variable.shape[0])))).numpy()


def fill_rows(variable: tf.Variable, first: int, rows: Any) -> None:
    """Sets rows of a new variable, from which no row was gathered, from the first one on."""
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle,
        begin=[first],
        end=[first + len(rows)],
        strides=[1],
        value=tf.cast(rows, variable.dtype),
    )


def blocks_of_rows(variable: Any) -> Iterator[tuple[int, int]]:
    """Yields the first and the end of blocks of rows of a variable, of some MiB each."""
    rows, of_row = int(variable.shape[0]), Weight.of(variable).num_bytes // int(variable.shape[0])
    size = max(_BLOCK // of_row, 1)
    for first in range(0, rows, size):
        yield first, min(first + size, rows)


def save_variables(variables: Sequence[Any], store: Any) -> None:
    """Stores Keras variables in a Keras store, by their number.

    Large variables that are updated by rows (not trained by Keras) are not copied.

    Args:
        variables: Keras variables.
        store: What Keras passes to `save_own_variables`.
    """
    for number, variable in enumerate(variables):
        saved = None
        if _is_large(variable):
            dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
            saved = h5_dataset(store, str(number), tuple(variable.shape), dtype)
        if saved is None:
            store[str(number)] = keras.ops.convert_to_numpy(variable)
            continue
        for first, end in blocks_of_rows(variable):
            saved[first:end] = read_rows(variable_behind(variable), first, end)


def load_variables(variables: Sequence[Any], store: Mapping[str, Any]) -> None:
    """Assigns saved arrays of checked shapes; large ones block by block.

    A variable with a custom `assign` gets the whole array.
    """
    for number, variable in enumerate(variables):
        saved = store[str(number)]
        if not _is_large(variable) or "assign" in vars(variable):
            variable.assign(saved)
            continue
        for first, end in blocks_of_rows(variable):
            target = variable_behind(variable)
            rows = tf.cast(np.asarray(saved[first:end]), target.dtype)
            scatter_update(target, ids_between(first, end), rows)


def _is_large(variable: Any) -> bool:
    is_by_rows = not variable.trainable and len(variable.shape) > 0
    return is_by_rows and Weight.of(variable).num_bytes >= _LARGE
