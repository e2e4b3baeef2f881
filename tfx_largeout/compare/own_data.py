# SPDX-License-Identifier: Apache-2.0
"""OwnData: a user's data for `fit`, with facts that a comparison needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.compare.root_message import root_message
from tfx_largeout.labels import is_sparse_matrix, normalize_labels, soft_labels

_KERAS_BATCH = 32


def require_compiled(model: Any) -> None:
    """Raises an error for what is not a compiled model."""
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a compiled keras model; got {model!r}")
    if not model.compiled:
        raise ValueError(f"model must be compiled; got {model.name!r}, which is not")


class OwnData:
    """Examples for training or evaluation, in a form for `fit` and `evaluate`.

    They are a tuple `(x, y)` or `(x, y, weights)`, of arrays or SciPy's sparse matrices; a
    `tf.data.Dataset`, a Keras `PyDataset`, or another iterable of known length that can be read
    repeatedly, such as a data loader. A dataset of unknown length is read once, to count its
    batches. `name` is used in errors.

    Attributes:
        arguments: The arguments of `evaluate`.
        batches: The number of batches.
        batch_size: The number of examples in the first batch.

    Raises:
        TypeError: `data` has another type.
        ValueError: It is infinite or empty; or `batch_size` is given, and it is not arrays.
    """

    def __init__(self, name: str, data: Any, batch_size: int | None) -> None:
        self._name, self._data = name, data
        if _is_arrays(data):
            if len(data) not in (2, 3):
                raise ValueError(f"{name} must be (x, y) or (x, y, weights); got {len(data)} parts")
            examples = _length(data[1])
            self.batch_size = min(batch_size or _KERAS_BATCH, examples)
            self.batches = math.ceil(examples / self.batch_size) if examples else 0
            names = ("x", "y", "sample_weight")
            parts = (part.tocsr() if is_sparse_matrix(part) else part for part in data)
            self.arguments = dict(zip(names, parts, strict=False))
            self.arguments["batch_size"] = batch_size or _KERAS_BATCH
        else:
            if batch_size is not None:
                raise ValueError(
                    f"batch_size must be None where {name} comes in batches; got {batch_size}"
                )
            self.batches = _number_of_batches(name, data)
            self.arguments = {"x": data}
            if isinstance(data, tf.data.Dataset):  # Keras would find its end by one step too many
                length = tf.data.experimental.assert_cardinality(self.batches)
                self.arguments = {"x": data.apply(length)}
            labels = next(_labels_of(data)) if self.batches else ()
            if labels is None:
                raise TypeError(
                    f"{name} must be a tuple (x, y), or batches that are; got batches without "
                    f"labels in {type(data).__name__}"
                )
            self.batch_size = _length(labels)
        if not self.batches:
            raise ValueError(f"{name} must have at least one batch; got none")

    @property
    def fit_arguments(self) -> dict[str, Any]:
        """The arguments of `fit`, which would warn that it does not shuffle a `tf.data.Dataset`."""
        is_dataset = isinstance(self._data, tf.data.Dataset)
        return {**self.arguments, "shuffle": False} if is_dataset else self.arguments

    def check_ids(self, num_classes: int, ignore_class: int | None = None) -> None:
        """Checks before training that labels are class ids: all labels of arrays, otherwise some.

        `ignore_class` is read as -1.

        Raises:
            TypeError, ValueError: They are not class ids.
        """
        labels = next(_labels_of(self._data))
        if labels is None or isinstance(labels, dict):
            got = "none" if labels is None else f"those of {list(labels)}"
            raise ValueError(f"{self._name} must have labels of one output; got {got}")
        if _is_one_hot(labels, num_classes):
            raise ValueError(
                f"{self._name}: labels must be class ids; got {num_classes} columns of zeros and "
                "ones: np.argmax(y, axis=-1) makes ids of rows with one label"
            )
        self._counts(labels, num_classes, ignore_class)

    def label_counts(self, num_classes: int, ignore_class: int | None = None) -> np.ndarray:
        """Returns the number of examples per class, `[C]` int64; reads all labels.

        `ignore_class` is read as -1.

        Raises:
            TypeError, ValueError: They are not class ids.
        """
        counts = np.zeros(num_classes, np.int64)
        for labels in _labels_of(self._data):
            counts += self._counts(labels, num_classes, ignore_class)
        return counts

    def _counts(self, labels: Any, num_classes: int, ignore_class: int | None) -> np.ndarray:
        if soft_labels(labels) is not None:
            raise TypeError(f"{self._name}: labels must be class ids; got soft labels")
        try:
            if not _is_sparse(labels):
                labels = np.asarray(labels)
                if _is_one_hot(labels, num_classes):
                    labels = (labels > 0) & (np.arange(num_classes) != ignore_class)
                    return labels.sum(axis=tuple(range(labels.ndim - 1)))
            shape = [_length(labels)]
            if isinstance(labels, np.ndarray) and labels.ndim > 2:
                shape = labels.shape[:2]
            found = normalize_labels(labels, num_classes, tf.constant(shape), ignore_class)
            ids = found.positive.ids.numpy()
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(f"{self._name}: {root_message(str(error))}") from None
        return np.bincount(ids[ids >= 0], minlength=num_classes)


def own_data(train: Any, validation: Any, batch_size: int | None) -> tuple[OwnData, OwnData]:
    """Returns both; arrays get the batch size.

    Raises:
        TypeError, ValueError: As `OwnData`; also if `batch_size` is given and neither is arrays.
    """
    if batch_size is not None:
        batch_size = integer_argument("batch_size", batch_size, at_least=1)
    pair = {"train": train, "validation": validation}
    no_arrays = not any(map(_is_arrays, pair.values()))
    made = (
        OwnData(name, data, batch_size if no_arrays or _is_arrays(data) else None)
        for name, data in pair.items()
    )
    return next(made), next(made)


def _number_of_batches(name: str, data: Any) -> int:
    if isinstance(data, tf.data.Dataset):
        number = int(data.cardinality())
        if number == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                f"{name} must be finite; got a data set without end: {name}.take(n) has one"
            )
        if number == tf.data.UNKNOWN_CARDINALITY:
            number = int(data.reduce(np.int64(0), lambda so_far, *_: so_far + 1))
        return number
    if getattr(data, "num_batches", None) is not None:
        return int(data.num_batches)
    if not hasattr(data, "__len__"):
        raise TypeError(
            f"{name} must be a tuple (x, y), a tf.data.Dataset, a keras.utils.PyDataset or "
            f"another iterable with a length; got {type(data).__name__}"
        )
    return len(data)


def _is_arrays(data: Any) -> bool:
    return isinstance(data, (tuple, list))


def _labels_of(data: Any) -> Iterator[Any]:
    """Yields the labels of each batch; labels of arrays at once."""
    batches = [data] if _is_arrays(data) else data
    if isinstance(data, keras.utils.PyDataset):
        batches = (data[number] for number in range(data.num_batches))
    for batch in batches:
        yield keras.utils.unpack_x_y_sample_weight(batch)[1]


def _length(labels: Any) -> int:
    """Returns the number of examples."""
    if isinstance(labels, tf.SparseTensor):
        return int(labels.dense_shape[0])
    if is_sparse_matrix(labels):
        return int(labels.shape[0])
    return int(labels.nrows()) if isinstance(labels, tf.RaggedTensor) else len(labels)


def _is_sparse(labels: Any) -> bool:
    return isinstance(labels, (tf.SparseTensor, tf.RaggedTensor)) or is_sparse_matrix(labels)


def _is_one_hot(labels: Any, num_classes: int) -> bool:
    """Returns whether labels are rows of C zeros and ones (for two classes: only floats)."""
    if _is_sparse(labels):
        return False
    labels = np.asarray(labels)
    if labels.ndim < 2 or labels.shape[-1] != num_classes or labels.dtype.kind not in "biuf":
        return False
    if num_classes <= 2 and labels.dtype.kind != "f":
        return False
    return bool(((labels >= 0) & (labels <= 1)).all())
