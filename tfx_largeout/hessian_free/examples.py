# SPDX-License-Identifier: Apache-2.0
"""Examples: inputs, targets and weights, accessed by number."""

from __future__ import annotations

import copy
import math
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.labels import soft_labels

Batch = tuple[Any, tf.Tensor, tf.Tensor]

_ROWS = 4096  # rows of a digest at a time


class Examples:
    """N examples in memory.

    Args:
        x: The inputs of the model: an array, or a list, tuple or dict of arrays.
        y: The targets, an array.
        sample_weight: `[N]` or of the shape of the batch dimensions of the output. Default None: 1.

    Raises:
        TypeError: An argument is not a dense array.
        ValueError: There are no examples, lengths differ, or a weight is below 0.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any = None) -> None:
        x = tf.nest.map_structure(lambda array: _array("x", array), x)
        if isinstance(y, dict) or soft_labels(y) is not None:
            raise TypeError(
                "y must be a dense array of targets for Hessian-free training; got a pair or a "
                "dict, such as soft labels"
            )
        y = _array("y", y)
        if sample_weight is None:
            sample_weight = np.ones(len(y), "float32")
        sample_weight = _array("sample_weight", sample_weight)
        if not np.all(sample_weight >= 0):
            raise ValueError(
                "sample_weight must be at least 0, for the loss to stay convex; got "
                f"{np.min(sample_weight)}"
            )
        self._data = (x, y, sample_weight)
        sizes = [len(array) for array in tf.nest.flatten(self._data)]
        if len(set(sizes)) > 1:
            raise ValueError(
                "x, y and sample_weight must have as many examples each; got "
                f"{', '.join(map(str, sizes))}"
            )
        if sizes[0] == 0:
            raise ValueError("x must have at least one example; got none")
        self._rows = np.arange(sizes[0])

    @classmethod
    def of(cls, x: Any, y: Any = None, sample_weight: Any = None) -> Examples:
        """Returns examples from arrays, or from a dataset, which is read once, into memory.

        Args:
            x: Arrays, or a finite `tf.data.Dataset` of batches (x, y) or (x, y, sample_weight),
                all of one shape.
            y: The targets; None with a dataset.
            sample_weight: As above; None with a dataset.
        """
        if not isinstance(x, tf.data.Dataset):
            if y is None:
                raise ValueError("y must be given, unless x is a dataset with targets; got None")
            return cls(x, y, sample_weight)
        if y is not None or sample_weight is not None:
            raise ValueError("y and sample_weight must be None where x is a dataset with targets")
        return cls(*_read(x))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def spec(self) -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
        """The shapes and dtypes of a batch of any size: x, y, sample weights."""
        return tf.nest.map_structure(
            lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), self._data
        )

    def digest(self) -> int:
        """Returns a checksum of all values. Cost: a pass over them."""
        digest = zlib.crc32(self._rows.tobytes())
        for array in tf.nest.flatten(self._data):
            for start in range(0, len(self), _ROWS):
                rows = array[self._rows[start : start + _ROWS]]
                digest = zlib.crc32(rows.tobytes(), digest)
        return digest

    def take(self, numbers: np.ndarray) -> Batch:
        """Returns the examples with these numbers as tensors."""
        rows = self._rows[numbers]
        return tf.nest.map_structure(lambda array: tf.constant(array[rows]), self._data)

    def part(self, numbers: np.ndarray) -> Examples:
        """Returns the examples with these numbers, without a copy."""
        part = copy.copy(self)
        part._rows = self._rows[numbers]
        return part


def examples_of(
    data: tuple[Any, Any, Any], line_search_data: Any, share: float, seed: int
) -> tuple[Examples, Examples]:
    """Returns the examples for gradients, and the examples for the line search.

    The latter are `line_search_data`; if it is None, a random share of `data`, (x, y,
    sample_weight), which is then not used for gradients.
    """
    examples = Examples.of(*data)
    if line_search_data is None:
        return _split(examples, math.ceil(share * len(examples)), seed)
    if isinstance(line_search_data, tf.data.Dataset):
        line_search_data = (line_search_data,)
    elif not isinstance(line_search_data, (tuple, list)) or len(line_search_data) not in (2, 3):
        raise ValueError(
            "line_search_data must be (x, y), (x, y, sample_weight) or a dataset; got a "
            f"{type(line_search_data).__name__}"
        )
    held_out = Examples.of(*line_search_data)
    if held_out.spec != examples.spec:
        raise ValueError(
            "line_search_data must have the shapes and dtypes of the other examples, "
            f"{examples.spec}; got {held_out.spec}"
        )
    return examples, held_out


def _split(examples: Examples, held_out: int, seed: int) -> tuple[Examples, Examples]:
    if held_out >= len(examples):
        raise ValueError(
            "x must have examples for the gradient beside those for the line search; got "
            f"{len(examples)} in all"
        )
    order = np.random.default_rng([seed, 1]).permutation(len(examples))
    return examples.part(np.sort(order[held_out:])), examples.part(np.sort(order[:held_out]))


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(f"{name} must be dense arrays; got a {type(value).__name__}")
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" and array.dtype != tf.bfloat16.as_numpy_dtype:
        raise TypeError(f"{name} must be arrays of numbers; got dtype {array.dtype}")
    if array.ndim == 0:
        raise ValueError(f"{name} must have the examples as its first dimension; got a scalar")
    is_float = array.dtype.kind not in "iub"
    return array.astype(keras.backend.floatx(), copy=False) if is_float else array


def _read(dataset: tf.data.Dataset) -> Batch:
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError("a dataset must be finite; got an infinite one")
    batches = list(dataset)
    if not batches:
        raise ValueError("x must have at least one example; got an empty dataset")
    if not isinstance(batches[0], tuple) or not 2 <= len(batches[0]) <= 3:
        raise ValueError(
            "a dataset must give (x, y) or (x, y, sample_weight); got "
            f"{tf.nest.map_structure(lambda spec: spec.shape, dataset.element_spec)}"
        )
    batches = [tf.nest.map_structure(lambda a: _array("x, y", a), batch) for batch in batches]
    shapes = {str(tf.nest.map_structure(lambda a: a.shape[1:], batch)) for batch in batches}
    if len(shapes) > 1:
        raise ValueError(f"batches must have examples of one shape; got {sorted(shapes)}")
    return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *batches)
