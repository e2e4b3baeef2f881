# SPDX-License-Identifier: Apache-2.0
"""SparseExamples: sparse features and label sets of many examples, as flat arrays."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, flag_argument, integer_argument
from tfx_largeout.datasets.csr_format import CsrMatrix
from tfx_largeout.datasets.sparse_rows import ARRAYS, LABEL_VALUES, JoinedRows


@dataclasses.dataclass(frozen=True, eq=False)
class SparseExamples:
    """Examples with sparse features and any number of labels each, in compressed rows.

    The features of example i are `feature_ids[feature_splits[i]:feature_splits[i + 1]]` with the
    `feature_values` at the same places; its labels are
    `label_ids[label_splits[i]:label_splits[i + 1]]`. The arrays are read-only.

    Cost: 8 bytes per feature, 8 bytes per label, 16 bytes per example. The arrays may be
    memory-mapped files, as from `read_xc(..., cache=folder)`.

    Args:
        feature_splits: `[N + 1]` int64, from 0, not falling.
        feature_ids: `[nnz]` int32, 0 <= id < num_features, rising within a row.
        feature_values: `[nnz]` float32.
        label_splits: `[N + 1]` int64, from 0, not falling.
        label_ids: int64, 0 <= id < num_labels, no id twice within a row.
        num_features: Width of the input, at most 2,147,483,647.
        num_labels: Number of classes.

    Raises:
        ValueError: An array has a wrong shape or dtype, the arrays do not fit together, an id is
            out of range, or features do not rise within a row. (Repeated labels in a row are not
            detected.)
    """

    feature_splits: np.ndarray
    feature_ids: np.ndarray
    feature_values: np.ndarray
    label_splits: np.ndarray
    label_ids: np.ndarray
    num_features: int
    num_labels: int

    def __post_init__(self) -> None:
        for name in ("num_features", "num_labels"):
            value = integer_argument(name, getattr(self, name), at_least=0)
            object.__setattr__(self, name, value)
        if self.num_features > _MAX_FEATURES:
            raise ValueError(
                f"num_features must be at most {_MAX_FEATURES}; got {self.num_features}"
            )
        # Before the cast, which could bring ids into range.
        for name, width in (("feature_ids", "num_features"), ("label_ids", "num_labels")):
            ids = _as_integers(name, getattr(self, name))
            _check_ids(name, ids, width, getattr(self, width))
        for name in ("feature_splits", "label_splits"):
            _as_integers(name, getattr(self, name))
        _as_vector("feature_values", self.feature_values, "biuf", "real numbers")
        for name, dtype in ARRAYS.items():
            array = np.ascontiguousarray(getattr(self, name), dtype).view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        _check_splits("feature_splits", self.feature_splits, len(self.feature_ids))
        _check_splits("label_splits", self.label_splits, len(self.label_ids))
        if len(self.feature_splits) != len(self.label_splits):
            raise ValueError(
                "feature_splits and label_splits must have the same length; "
                f"got {len(self.feature_splits)} and {len(self.label_splits)}"
            )
        if len(self.feature_values) != len(self.feature_ids):
            raise ValueError(
                "feature_values must have one value for each of feature_ids; "
                f"got {len(self.feature_values)} and {len(self.feature_ids)}"
            )
        _check_rising("feature_ids", self.feature_ids, self.feature_splits)

    @property
    def num_examples(self) -> int:
        """Number of examples N."""
        return len(self.feature_splits) - 1

    def __len__(self) -> int:
        return self.num_examples

    def label_counts(self) -> np.ndarray:
        """Number of examples that have each label: `[num_labels]` int64."""
        return np.bincount(self.label_ids, minlength=self.num_labels)

    def with_labels(self) -> SparseExamples:
        """The examples with a label, in the same order; self if all have one.

        Losses and metrics leave out the others anyway, so this saves time, and changes the content
        of batches.
        """
        rows = np.flatnonzero(np.diff(self.label_splits))
        return self if len(rows) == self.num_examples else self.take(rows)

    @classmethod
    def from_csr(cls, features: Any, labels: Any, *, label_values: str = "one") -> SparseExamples:
        """Creates examples from two sparse matrices of SciPy.

        Cost: O(entries) time; the arrays of the result twice in memory at the end.

        Args:
            features: `[N, num_features]`, of real numbers that are finite in float32. Ids of a row
                may be in any order, but not repeated.
            labels: `[N, num_labels]`, with an entry for each label of an example.
            label_values: The allowed values of labels, as in `read_xc`.

        Raises:
            TypeError: An argument is not a sparse matrix of SciPy.
            ValueError: They have different numbers of rows, or a row breaks a rule.
        """
        choice_argument("label_values", label_values, LABEL_VALUES)
        x, y = CsrMatrix("features", features), CsrMatrix("labels", labels)
        if x.counts[0] != y.counts[0]:
            raise ValueError(
                "features and labels must have the same number of rows; "
                f"got {x.counts[0]} and {y.counts[0]}"
            )
        joined = JoinedRows()
        for _, rows in x.blocks("feature", "finite"):
            joined.append("feature", rows)
        for _, rows in y.blocks("label", label_values):
            joined.append("label", rows.as_labels())
        return cls(**joined.arrays(), num_features=x.counts[1], num_labels=y.counts[1])

    def to_csr(self) -> tuple[Any, Any]:
        """Returns features and labels as two float32 `scipy.sparse.csr_matrix`.

        Cost: 8 bytes per label; the arrays of features are shared, and read-only.

        Raises:
            ModuleNotFoundError: SciPy is not installed.
        """
        try:
            from scipy.sparse import csr_matrix
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("to_csr needs SciPy: pip install scipy") from error
        number = self.num_examples
        ones = np.ones(len(self.label_ids), np.float32)
        ids = self.label_ids.copy()  # as they are sorted in place
        labels = csr_matrix((ones, ids, self.label_splits), [number, self.num_labels])
        labels.sort_indices()
        features = (self.feature_values, self.feature_ids, self.feature_splits)
        return csr_matrix(features, [number, self.num_features]), labels

    @classmethod
    def unchecked(cls, **fields: Any) -> SparseExamples:
        """Creates examples from valid arrays, without checks."""
        examples = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(examples, name, value)
        return examples

    def take(self, rows: np.ndarray) -> SparseExamples:
        """The examples `rows`, in that order.

        Args:
            rows: `[n]` integers in [0, N); an index may be repeated.

        Returns:
            A new container of n examples.

        Raises:
            ValueError: `rows` are not integers, not a vector, or out of range.
        """
        rows = _as_integers("rows", rows)
        _check_ids("rows", rows, "N", self.num_examples)
        rows = rows.astype(np.int64)
        feature_splits, features = _gather_rows(self.feature_splits, rows)
        label_splits, labels = _gather_rows(self.label_splits, rows)
        return dataclasses.replace(
            self,
            feature_splits=feature_splits,
            feature_ids=self.feature_ids[features],
            feature_values=self.feature_values[features],
            label_splits=label_splits,
            label_ids=self.label_ids[labels],
        )

    def dataset(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_remainder: bool = False,
    ) -> tf.data.Dataset:
        """One epoch of batches `(features, labels)` for `model.fit`.

        With `shuffle=True` each new iterator over the dataset, and so each epoch of `fit`, uses
        another random order of all examples. The orders depend on `seed` and on the number of
        earlier iterators of this dataset object: two equal datasets give the same epochs. Batches
        are built in TensorFlow's threads, without Python.

        Cost: O(nonzeros of the batch) per batch; a copy of the arrays in memory. Rows of
        memory-mapped arrays are read from their files, by Python; then only a few batches and, with
        `shuffle`, 8 bytes per example are in memory.

        Args:
            batch_size: Examples per batch, B.
            shuffle: Whether to draw a new random order for each epoch.
            seed: The seed of the orders.
            drop_remainder: Whether to leave out a last batch of fewer than B examples.

        Returns:
            A dataset of known cardinality. Its elements are features, a
            `tf.SparseTensor [B, num_features]` float32 in row-major order, and labels, a
            `tf.RaggedTensor [B, None]` int64.

        Raises:
            ValueError: An argument is not an integer of at least 1 (`seed`: 0), or not a flag.
        """
        batch_size = integer_argument("batch_size", batch_size, at_least=1)
        seed = integer_argument("seed", seed, at_least=0)
        shuffle = flag_argument("shuffle", shuffle)
        drop_remainder = flag_argument("drop_remainder", drop_remainder)
        num_full, remainder = divmod(self.num_examples, batch_size)
        num_batches = num_full + (0 if drop_remainder or not remainder else 1)
        size = batch_size if drop_remainder else None
        make = self._batch_of_files if self._is_mapped() else self._batch_of_tensors
        batch = make(size)
        epochs = itertools.count()

        def draw_order() -> np.ndarray:
            return np.random.default_rng([seed, next(epochs)]).permutation(self.num_examples)

        def epoch(_: tf.Tensor) -> tf.data.Dataset:
            if shuffle:
                order = tf.numpy_function(draw_order, [], tf.int64)
            else:
                order = tf.range(self.num_examples, dtype=tf.int64)

            def build(index: tf.Tensor) -> tuple[tf.SparseTensor, tf.RaggedTensor]:
                start = index * batch_size
                return batch(order[start : start + batch_size])

            return tf.data.Dataset.range(num_batches).map(
                build, num_parallel_calls=2, deterministic=True
            )

        options = tf.data.Options()
        options.autotune.enabled = False  # its thread delays the end of each epoch by up to 0.8 s
        return (
            tf.data.Dataset.from_tensors(0)
            .flat_map(epoch)
            .apply(tf.data.experimental.assert_cardinality(num_batches))
            .prefetch(8)
            .with_options(options)
        )

    def _is_mapped(self) -> bool:
        return any(_mapped(getattr(self, name)) is not None for name in ARRAYS)

    def _batch_of_tensors(self, size: int | None) -> _Batch:
        with tf.device("CPU"):
            arrays = {name: tf.constant(getattr(self, name)) for name in ARRAYS}

        def batch(rows: tf.Tensor) -> tuple[tf.SparseTensor, tf.RaggedTensor]:
            rows = tf.ensure_shape(rows, [size])
            features = _ragged_rows(arrays["feature_splits"], rows)
            ids = tf.cast(tf.gather(arrays["feature_ids"], features.values), tf.int64)
            num_rows = tf.cast(tf.size(rows) if size is None else size, tf.int64)
            sparse = tf.SparseTensor(
                indices=tf.stack([features.value_rowids(), ids], axis=1),
                values=tf.gather(arrays["feature_values"], features.values),
                dense_shape=tf.stack([num_rows, self.num_features]),
            )
            labels = _ragged_rows(arrays["label_splits"], rows)
            return sparse, labels.with_values(tf.gather(arrays["label_ids"], labels.values))

        return batch

    def _batch_of_files(self, size: int | None) -> _Batch:
        read = {
            name: _reader_of_rows(getattr(self, name)) for name in ARRAYS if "splits" not in name
        }

        def read_rows(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            starts, ends = self.feature_splits[rows], self.feature_splits[rows + 1]
            row_ids = np.repeat(np.arange(len(rows)), ends - starts)
            ids, values = (read[name](starts, ends) for name in ("feature_ids", "feature_values"))
            starts, ends = self.label_splits[rows], self.label_splits[rows + 1]
            labels = read["label_ids"](starts, ends)
            return np.stack([row_ids, ids], axis=1), values, ends - starts, labels

        dtypes = (tf.int64, tf.float32, tf.int64, tf.int64)
        shapes = ([None, 2], [None], [size], [None])

        def batch(rows: tf.Tensor) -> tuple[tf.SparseTensor, tf.RaggedTensor]:
            read = tf.numpy_function(read_rows, [rows], dtypes)
            indices, values, lengths, labels = map(tf.ensure_shape, read, shapes)
            num_rows = tf.size(rows, tf.int64) if size is None else tf.constant(size, tf.int64)
            return (
                tf.SparseTensor(indices, values, tf.stack([num_rows, self.num_features])),
                tf.RaggedTensor.from_row_lengths(labels, lengths, validate=False),
            )

        return batch


_Batch = Callable[[tf.Tensor], tuple[tf.SparseTensor, tf.RaggedTensor]]

_MAX_FEATURES = np.iinfo(np.int32).max


def require_like(train: SparseExamples, others: Sequence[SparseExamples], *names: str) -> None:
    """Raises a ValueError if the named numbers differ between the first and the others."""
    for examples in others:
        for name in names:
            wanted, got = getattr(train, name), getattr(examples, name)
            if got != wanted:
                raise ValueError(f"others must have {name} = {wanted}, as train; got {got}")


def rows_of_entries(splits: np.ndarray) -> np.ndarray:
    """The row of each entry of the flat arrays."""
    return np.repeat(np.arange(len(splits) - 1), np.diff(splits))


def _ragged_rows(splits: tf.Tensor, rows: tf.Tensor) -> tf.RaggedTensor:
    """Positions in the flat arrays of the entries of each of `rows`."""
    return tf.ragged.range(tf.gather(splits, rows), tf.gather(splits, rows + 1))


def _mapped(array: np.ndarray) -> np.memmap | None:
    """Returns the memory-mapped file that begins with the array, or None."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.ctypes.data == array.ctypes.data:
            return base
        base = base.base
    return None


def _reader_of_rows(array: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Returns a function that concatenates the entries from `starts` to `ends`, both `[n]`.

    Entries of a mapped file are read from the file, because mapped pages would count as memory.
    """
    mapped = _mapped(array)
    if mapped is None or mapped.filename is None:
        return lambda starts, ends: array[_places(starts, ends)]
    file = open(mapped.filename, "rb")  # noqa: SIM115
    offset, size, dtype = mapped.offset, array.itemsize, array.dtype

    def read(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        if np.array_equal(starts[1:], ends[:-1]):
            starts, ends = starts[:1], ends[-1:]
        lengths, places = (ends - starts) * size, offset + starts * size
        parts = map(functools.partial(os.pread, file.fileno()), lengths.tolist(), places.tolist())
        return np.frombuffer(b"".join(parts), dtype)

    return read


def _places(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    lengths = ends - starts
    splits = np.cumsum(lengths) - lengths
    return np.repeat(starts - splits, lengths) + np.arange(lengths.sum())


def _gather_rows(splits: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row splits of the chosen rows, and the positions of their entries."""
    starts, ends = splits[rows], splits[rows + 1]
    return np.concatenate([[0], np.cumsum(ends - starts)]), _places(starts, ends)


def _as_vector(name: str, value: Any, kinds: str, what: str) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim != 1:
        raise ValueError(f"{name} must be a vector; got shape {array.shape}")
    if len(array) and array.dtype.kind not in kinds:
        raise ValueError(f"{name} must be {what}; got dtype {array.dtype}")
    return array


def _as_integers(name: str, value: Any) -> np.ndarray:
    return _as_vector(name, value, "iu", "integers")


def _check_splits(name: str, splits: np.ndarray, size: int) -> None:
    if not len(splits) or splits[0] != 0 or splits[-1] != size:
        raise ValueError(f"{name} must run from 0 to {size}; got {splits}")
    if np.any(np.diff(splits) < 0):
        raise ValueError(f"{name} must not fall; got {splits}")


def _check_ids(name: str, ids: np.ndarray, limit_name: str, limit: int) -> None:
    if len(ids) and not (ids.min() >= 0 and ids.max() < limit):
        raise ValueError(
            f"{name} must be in [0, {limit_name}) = [0, {limit}); "
            f"got values from {ids.min()} to {ids.max()}"
        )


def _check_rising(name: str, ids: np.ndarray, splits: np.ndarray) -> None:
    rises = np.diff(ids, prepend=-1) > 0
    starts = splits[:-1]
    rises[starts[starts < len(ids)]] = True
    if not rises.all():
        row = np.searchsorted(splits, np.argmin(rises), side="right") - 1
        raise ValueError(
            f"{name} must rise within a row; got {ids[splits[row] : splits[row + 1]]} in row {row}"
        )
