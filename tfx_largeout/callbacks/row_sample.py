# SPDX-License-Identifier: Apache-2.0
"""RowSample: the same few rows of validation data, chosen at random, each time."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.distribute.dataset_shard import shard
from tfx_largeout.distribute.meeting import agree
from tfx_largeout.distribute.workers import current


class RowSample:
    """A random sample without replacement of the rows that have a label, kept in memory.

    Each row gets a random number, in the order of the data; the rows with the smallest numbers are
    the sample, in the order of the data. So arrays and a data set of the same rows give the same
    sample, with any batch size, in one pass.

    Dense batches of a data set with different lengths, such as padded sequences, are padded to the
    largest: integer labels with -1, everything else with 0.

    Args:
        asked_by: The name of the caller, for error messages.
        data: `(x, y)` or `(x, y, sample_weight)`, of arrays or tensors in any nesting; or batches
            of these as a `tf.data.Dataset`, a `PyDataset` or another iterable that ends.
        rows: The number of rows; all if there are fewer.
        seed: The seed of the choice.
        ignored: An id that is not a label, like -1.

    Attributes:
        size: The number of rows in the sample.
        seen: The number of rows in the data, also without a label.

    Raises:
        TypeError: The data have another type.
        ValueError: They have no labels, no end, or parts of different lengths.
    """

    def __init__(
        self, asked_by: str, data: Any, rows: int, seed: int, ignored: int | None = None
    ) -> None:
        self._asked_by = asked_by
        random = np.random.default_rng(seed)
        parts: list[Any] = []
        numbers: list[np.ndarray] = []
        self.seen, bound = 0, np.inf
        for batch in in_batches(asked_by, data):
            length = common_length(asked_by, batch)
            drawn = random.random(length)
            self.seen += length
            places = np.flatnonzero(_has_label(batch[1], length, ignored) & (drawn <= bound))
            if not places.size:
                continue
            parts.append(map_leaves(lambda leaf: rows_of(leaf, places), batch))  # noqa: B023
            numbers.append(drawn[places])
            if sum(map(len, numbers)) > rows:
                bound = np.partition(np.concatenate(numbers), rows - 1)[rows - 1]
        if not parts:
            raise ValueError(
                f"{asked_by} needs at least one row with a label; got {self.seen} rows without"
            )
        chosen = np.sort(np.argsort(np.concatenate(numbers), kind="stable")[:rows])
        self.size = len(chosen)
        self._rows = tuple(
            _merged([part[place] for part in parts], -1 if place == 1 else 0, chosen)
            for place in range(len(parts[0]))
        )

    def batches(self, batch_size: int) -> tuple[tf.data.Dataset, list[int]]:
        """Returns the rows in batches, and their sizes; with several workers, a part of each batch.

        Raises:
            ValueError: Workers have different rows.
        """
        agree(current(), self._asked_by, {"the sample of rows": self._digest})
        sizes = [min(batch_size, self.size - start) for start in range(0, self.size, batch_size)]
        return shard(tf.data.Dataset.from_tensor_slices(self._rows).batch(batch_size)), sizes

    def _digest(self) -> int:
        tensors = tf.nest.flatten(self._rows, expand_composites=True)
        return zlib.crc32(b"".join(tf.io.serialize_tensor(each).numpy() for each in tensors))


def in_batches(asked_by: str, data: Any, endless: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yields tuples of inputs, labels and, if given, weights; arrays are one tuple.

    Raises ValueError for infinite data, unless `endless`.
    """
    if isinstance(data, (tuple, list)):
        if len(data) not in (2, 3):
            raise ValueError(f"{asked_by} needs (x, y) or (x, y, weights); got {len(data)} parts")
        yield _unpacked(asked_by, data)
        return
    for batch in _iterated(asked_by, data, endless):
        yield _unpacked(asked_by, batch)


def _iterated(asked_by: str, data: Any, endless: bool) -> Any:
    rule = f"{asked_by} needs data with an end; got {{}}"
    if isinstance(data, tf.data.Dataset):
        if int(data.cardinality()) == tf.data.INFINITE_CARDINALITY and not endless:
            raise ValueError(rule.format("a data set without one: take(n) gives it one"))
        return data
    if isinstance(data, keras.utils.PyDataset):
        if data.num_batches is None and not endless:
            raise ValueError(rule.format("a PyDataset whose num_batches is None"))
        numbers = itertools.count() if data.num_batches is None else range(data.num_batches)
        return (data[number] for number in numbers)
    if not hasattr(data, "__iter__") or iter(data) is data or _is_array(data):
        raise TypeError(
            f"{asked_by} needs arrays x and y, a tf.data.Dataset, a keras.utils.PyDataset or "
            f"another iterable of batches that begins anew; got {type(data).__name__}"
        )
    return data


def _is_array(data: Any) -> bool:
    return isinstance(data, dict) or hasattr(data, "shape")


def _unpacked(asked_by: str, batch: Any) -> tuple[Any, ...]:
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if y is None:
        raise ValueError(f"{asked_by} needs labels y beside the inputs x; got none")
    return map_leaves(_as_rows, (x, y) if weights is None else (x, y, weights))


def _as_rows(leaf: Any) -> Any:
    """Returns an array that can be indexed by rows; floats in Keras's `floatx`."""
    if isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor, tf.Tensor)) or hasattr(leaf, "tocsr"):
        return leaf.tocsr() if hasattr(leaf, "tocsr") else leaf
    array = np.asarray(leaf)
    if array.dtype == np.float64:  # as in `fit`
        return _Cast(array) if array.ndim else array.astype(keras.config.floatx())
    return array


class _Cast:
    """Rows of a float64 array in Keras's `floatx`, cast on access."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = array.shape

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.array[rows].astype(keras.config.floatx())


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Maps the leaves of nested dicts, tuples and lists; lists become tuples."""
    if isinstance(tree, dict):
        return {name: map_leaves(function, value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return tuple(map_leaves(function, value) for value in tree)
    return function(tree)


def leaves_of(tree: Any) -> list[Any]:
    """Returns the leaves of nested dicts, tuples and lists."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def _length(leaf: Any) -> int:
    if isinstance(leaf, tf.SparseTensor):
        return int(leaf.dense_shape[0])
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    return leaf.shape[0] if len(leaf.shape) else -1


def common_length(asked_by: str, batch: Any) -> int:
    """Returns the number of rows of a batch; raises ValueError if its parts differ."""
    lengths = sorted({_length(leaf) for leaf in leaves_of(batch)})
    if len(lengths) != 1 or lengths[0] < 0:
        raise ValueError(
            f"{asked_by} needs x, y and weights of equally many rows; got "
            f"{['a scalar' if length < 0 else length for length in lengths]}"
        )
    return lengths[0]


def _has_label(y: Any, length: int, ignored: int | None) -> np.ndarray:
    """Returns for each row whether some output has a label. Float targets count as labels."""
    counted = np.zeros(length, bool)
    for leaf in leaves_of(y):
        if isinstance(leaf, tf.SparseTensor):
            rows, columns = leaf.indices.numpy().T
            ids = columns if leaf.dtype == tf.bool else leaf.values.numpy()
        elif hasattr(leaf, "tocsr"):
            entries = leaf.tocoo()
            rows, ids = entries.row, entries.col if leaf.dtype == bool else entries.data
        elif isinstance(leaf, tf.RaggedTensor):
            rows, ids = leaf.value_rowids().numpy(), leaf.values
            while isinstance(ids, tf.RaggedTensor):
                rows, ids = rows[ids.value_rowids().numpy()], ids.values
            ids = np.asarray(ids)
        else:
            rows, ids = np.arange(length), np.asarray(leaf[:])
        if ids.dtype.kind == "f":
            return np.ones(length, bool)
        is_label = (ids != -1) & (ids != ignored)
        counted[rows[is_label.any(axis=tuple(range(1, ids.ndim)))]] = True
    return counted


def rows_of(leaf: Any, rows: np.ndarray) -> Any:
    """Returns some rows, in rising order."""
    if isinstance(leaf, tf.SparseTensor):
        indices = leaf.indices.numpy()
        kept = np.isin(indices[:, 0], rows)
        indices = indices[kept]
        indices[:, 0] = np.searchsorted(rows, indices[:, 0])
        shape = [len(rows), *leaf.dense_shape.numpy()[1:]]
        return tf.SparseTensor(indices, leaf.values.numpy()[kept], shape)
    if hasattr(leaf, "tocsr"):
        part = leaf[rows].tocoo()
        values = part.data.astype(keras.config.floatx()) if part.dtype == np.float64 else part.data
        indices = np.stack([part.row, part.col], axis=1).astype(np.int64)
        return tf.sparse.reorder(tf.SparseTensor(indices, values, part.shape))
    if isinstance(leaf, (tf.RaggedTensor, tf.Tensor)):
        return tf.gather(leaf, rows)
    return leaf[rows]


def _merged(parts: list[Any], padding: int, rows: np.ndarray) -> Any:
    """Returns some rows of consecutive nested batches."""
    first = parts[0]
    if isinstance(first, dict):
        of_names = {name: [part[name] for part in parts] for name in first}
        return {name: _merged(of, padding, rows) for name, of in of_names.items()}
    if isinstance(first, tuple):
        return tuple(_merged(list(of), padding, rows) for of in zip(*parts, strict=True))
    return rows_of(_joined(parts, padding), rows)


def _joined(parts: list[Any], padding: int) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, parts, expand_nonconcat_dims=True)
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, axis=0)
    arrays = [np.asarray(part) for part in parts]
    shape = np.max([array.shape for array in arrays], axis=0)[1:]
    if padding and arrays[0].dtype.kind == "u":
        arrays = [array.astype(np.int64) for array in arrays]
    return np.concatenate([_padded(array, shape, padding) for array in arrays])


def _padded(array: np.ndarray, shape: np.ndarray, padding: int) -> np.ndarray:
    widths = [(0, 0), *((0, int(n)) for n in shape - array.shape[1:])]
    if not np.any(widths):
        return array
    return np.pad(array, widths, constant_values=padding if array.dtype.kind in "iu" else 0)
