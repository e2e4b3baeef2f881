# SPDX-License-Identifier: Apache-2.0
"""The normal form of labels: class ids `[N, K]`, padded with -1, and optionally values."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.devices import HOST
from tfx_largeout.run_time_checks import Check, after

PADDING = -1


def is_sparse_matrix(value: Any) -> bool:
    """Returns whether a value is a sparse matrix or array of SciPy."""
    return type(value).__module__.startswith("scipy.sparse") and hasattr(value, "tocsr")


class Labels(NamedTuple):
    """The classes of each example of a flattened batch, padded with -1.

    Attributes:
        ids: `[N, K]` int64, class ids, -1 where an example has fewer than K labels.
        values: `[N, K]` float, the target value of each label, 0 at padding, or None without
            values. A loss reads them as targets or as probabilities.
        weights: `[N, K]` float, the weights of the labels' classes, or None: all are 1. Undefined
            at padding.
    """

    ids: tf.Tensor
    values: tf.Tensor | None = None
    weights: tf.Tensor | None = None

    @property
    def mask(self) -> tf.Tensor:
        """`[N, K]` bool: True where there is a label."""
        return self.ids >= 0

    @property
    def safe_ids(self) -> tf.Tensor:
        """`[N, K]` int64: the ids with padding replaced by class 0, to gather with."""
        return tf.maximum(self.ids, 0)

    @property
    def counts(self) -> tf.Tensor:
        """`[N]` int64: the number of labels of each example."""
        return tf.math.count_nonzero(self.mask, axis=-1)

    @property
    def mass(self) -> tf.Tensor | None:
        """`[N]` float64: the sum of the values of each example; None without values."""
        if self.values is None:
            return None
        return tf.reduce_sum(tf.cast(self.values, tf.float64), axis=-1)

    @property
    def mean_weight(self) -> tf.Tensor | None:
        """`[N]`: the mean of the weights of each example's labels; None without weights."""
        return None if self.weights is None else self._replace(weights=None).mean(self.weights)

    @property
    def positive(self) -> Labels:
        """The labels with a target value above 0; all labels without values."""
        if self.values is None:
            return self
        return self._replace(ids=tf.where(self.values > 0, self.ids, PADDING))

    def are_largest(self, counted: tf.Tensor) -> tf.Tensor:
        """Returns `[N, K]` bool: True for the label with the largest value among `counted`.

        Ties go to the lowest id, as in the argmax over all classes; without values all are True.
        """
        if self.values is None:
            return counted
        values = tf.where(counted, self.values, self.values.dtype.min)
        counted &= tf.equal(values, tf.reduce_max(values, axis=-1, keepdims=True))
        ids = tf.where(counted, self.ids, tf.int64.max)
        return counted & tf.equal(ids, tf.reduce_min(ids, axis=-1, keepdims=True))

    def as_set(self, asked_by: str) -> Labels:
        """Returns the labels with a target value of 1, without values; raises for other values."""
        values: Any = self.values
        rule = f"{asked_by} must get class ids, or sparse targets of zeros and ones; got"
        with after([_check_each((values == 0) | (values == 1), rule, values)]):
            return self._replace(ids=tf.where(values == 1, self.ids, PADDING), values=None)

    @property
    def sets_as_shares(self) -> Labels:
        """With values 1 / n for the n ones of each example; without ones all values are 0.

        An example of zeros keeps its labels, with probabilities of 0.
        """
        values: Any = self.values
        total = tf.reduce_sum(values, axis=-1, keepdims=True)
        is_set = tf.reduce_all((values == 0) | (values == 1), axis=-1, keepdims=True) & (total > 0)
        shares = tf.math.divide_no_nan(values, total)
        ids = tf.where(is_set & (values == 0), tf.constant(PADDING, tf.int64), self.ids)
        return self._replace(ids=ids, values=tf.where(is_set, shares, values))

    def where(self, kept: tf.Tensor) -> Labels:
        """Returns the labels of the examples for which `kept`, `[N]` bool, is True."""
        return Labels(*(None if part is None else tf.boolean_mask(part, kept) for part in self))

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the mean of `values` over each example's labels.

        Labels are weighted by target value times weight; equally without both.

        Args:
            values: `[N, K]` float, a value per label. Padding is ignored.

        Returns:
            `[N]` float; 0 for an example without labels, or with only zero weights.
        """
        shares = [tf.cast(x, values.dtype) for x in (self.values, self.weights) if x is not None]
        if not shares:
            total = tf.reduce_sum(tf.where(self.mask, values, 0), axis=-1)
            return tf.math.divide_no_nan(total, tf.cast(self.counts, values.dtype))
        share = tf.where(self.mask, functools.reduce(tf.multiply, shares), 0)
        total = tf.reduce_sum(tf.where(share > 0, share * values, 0), axis=-1)
        return tf.math.divide_no_nan(total, tf.reduce_sum(share, axis=-1))


class SoftLabels:
    """Ids and values as one object: a leaf to Keras, which reads a pair as two outputs.

    Attributes:
        ids, values: The pair for `normalize_labels`, of the same shape.
    """

    def __init__(self, ids: Any, values: Any) -> None:
        self.ids, self.values = map(_as_tensor, (ids, values))

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the ids."""
        return self.ids.shape

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the ids."""
        return self.ids.dtype


def soft_labels(y_true: Any, must_be: bool = False) -> SoftLabels | None:
    """Returns labels with one value per id; None for labels of another form.

    Args:
        y_true: A pair of ids and values, or a dict of "ids" and "probabilities".
        must_be: Whether any two parts are a pair. Default False: only if the second one has floats,
            because a list of two rows of ids is not a pair.
    """
    if isinstance(y_true, SoftLabels):
        return y_true
    if isinstance(y_true, dict) and y_true.keys() == {"ids", "probabilities"}:
        return SoftLabels(y_true["ids"], y_true["probabilities"])
    is_pair = type(y_true) in (tuple, list) and len(y_true) == 2
    return SoftLabels(*y_true) if is_pair and (must_be or _has_floats(y_true[1])) else None


def _as_tensor(x: Any) -> Any:
    if is_sparse_matrix(x):  # as in Keras's loops
        matrix = x.tocsr().tocoo()
        places = np.stack([matrix.row, matrix.col], axis=1).astype(np.int64)
        return tf.SparseTensor(places, matrix.data, matrix.shape)
    return x if isinstance(x, (tf.RaggedTensor, tf.SparseTensor)) else tf.convert_to_tensor(x)


def _has_floats(part: Any) -> bool:
    try:
        part = part if hasattr(part, "dtype") else np.asarray(part)
    except ValueError:  # rows of different lengths
        return False
    return tf.TensorShape(part.shape).rank != 0 and tf.as_dtype(part.dtype).is_floating


def normalize_labels(
    y_true: Any, num_classes: int, batch_shape: Any = None, ignore_class: int | None = None
) -> Labels:
    """Brings labels of every accepted form into the normal form, and checks them.

    | form | shape |
    |---|---|
    | one label per example | `[B]` or `[B, 1]` |
    | several labels, padded with -1 | `[B, K]` |
    | `tf.RaggedTensor` | `[B, None]` |
    | `tf.SparseTensor` whose *values* are the ids, as `tf.io.VarLenFeature` reads them | `[B, K]` |
    | `tf.SparseTensor` of *floats*: the targets themselves, ids are its columns | `[B, C]` |
    | `tf.SparseTensor` of booleans: ids are the columns of what is True | `[B, C]` |
    | a sparse matrix of SciPy: as a `tf.SparseTensor` | `[B, C]` |
    | a pair of ids, in one of the first four forms, and floats of the same shape, a value each | |
    | a dict of such `"ids"` and `"probabilities"` | |

    With hidden activations `[B, T, D]` the same holds for each position of a dense tensor: `[B, T]`
    is one label per position, `[B, T, K]` several. The batch dimensions are flattened to N.

    Ids are always integers: above 2^24 a float32 can't represent them. The labels of an example are
    a set: repeated ids in a row become padding. With values, repeated ids raise an error. Values at
    padding are ignored.

    Cost: O(N K log K).

    Args:
        y_true: Labels in one of the forms above, of any integer dtype that fits into int64.
        num_classes: The number of classes C.
        batch_shape: The batch dimensions, such as `tf.shape(hidden)[:-1]`: an integer vector of
            known length. Default: one dimension, as in the labels.
        ignore_class: An id, of a class or not, that is read as -1. Default None.

    Returns:
        `Labels` with ids `[N, K]` int64, and values only if given.

    Raises:
        TypeError: The labels are None, or neither integers that fit into int64 nor sparse targets.
            Values of a pair are not floats, or the dict has other keys.
        ValueError: The rank fits no form, sparse targets do not have C columns or are used with an
            `ignore_class`, or ids and values have different shapes.
        tf.errors.InvalidArgumentError: The batch dimensions are not `batch_shape`, or ids and
            values have different shapes. An id is neither in [0, C) nor -1; the message has the
            first such id with its example and position. A value is not finite, or an id with a
            value is repeated in a row. The labels are an indicator matrix: C columns with only 0
            and 1 (if sparse: only 1). Raised when the graph runs.
    """
    with tf.device(HOST):  # where data come from: else each check would wait for a GPU
        labels, checks = _read(y_true, num_classes, batch_shape, ignore_class)
        return _checked(labels, num_classes, checks)


def read_labels(
    y_true: Any, num_classes: int, batch_shape: Any, ignore_class: int | None
) -> Labels:
    """As `normalize_labels`, without checks of ids and values."""
    with tf.device(HOST):
        labels, checks = _read(y_true, num_classes, batch_shape, ignore_class)
        with after(checks):
            return _identity(labels)


def _read(
    y_true: Any, num_classes: int, batch_shape: Any, ignore_class: int | None
) -> tuple[Labels, list[Check | None]]:
    if batch_shape is not None:
        batch_shape = tf.cast(tf.convert_to_tensor(batch_shape), tf.int32)
    if y_true is None:
        raise TypeError("labels must be integer class ids that fit into int64; got None")
    soft = soft_labels(y_true)
    if soft is not None:
        labels, checks = _from_pair(soft, batch_shape)
        return _without(labels, ignore_class), checks
    if isinstance(y_true, dict):
        raise TypeError(f"labels in a dict must be 'ids' and 'probabilities'; got {[*y_true]}")
    y_true = _as_tensor(y_true)
    if isinstance(y_true, tf.SparseTensor) and y_true.dtype == tf.bool:
        labels, checks = _from_targets(tf.cast(y_true, tf.float32), num_classes, batch_shape)
        return _without(labels.positive._replace(values=None), ignore_class), checks
    if isinstance(y_true, tf.SparseTensor) and y_true.dtype.is_floating:
        if ignore_class is not None:
            raise ValueError(
                "ignore_class must be None for sparse targets with values, which are "
                f"ids of columns; got {ignore_class}. Leave the entries out of the targets."
            )
        return _from_targets(y_true, num_classes, batch_shape)
    batch_rank = 1 if batch_shape is None else batch_shape.shape[0]
    ids = _to_dense(_as_int64(y_true), batch_rank, PADDING)
    checks = [_check_batch_shape(ids, batch_shape)]
    ids = _flatten_batch(ids, batch_rank)
    is_sparse = isinstance(y_true, tf.SparseTensor)
    checks.append(_check_no_indicators(ids, num_classes, is_sparse))
    return _without(Labels(ids), ignore_class), checks


def _without(labels: Labels, ignore_class: int | None) -> Labels:
    """Reads an id as padding, and values at padding as 0."""
    ids, values = labels.ids, labels.values
    if ignore_class is not None:
        ids = tf.where(ids == ignore_class, tf.constant(PADDING, tf.int64), ids)
    if values is not None:
        values = tf.where(ids == PADDING, tf.zeros_like(values), values)
    return Labels(ids, values)


def _checked(labels: Labels, num_classes: int, checks: list[Check | None]) -> Labels:
    ids, values = labels.ids, labels.values
    distinct, checks = _drop_repeats(ids), [*checks, _check_range(ids, num_classes)]
    if values is None:
        labels = Labels(distinct)
    else:
        rule = "labels: the values of ids (probabilities, or targets) must be finite; got"
        checks.append(_check_each(tf.math.is_finite(values), rule, values))
        rule = "labels: an id that has a value must stand once in an example; got another id"
        checks.append(_check_each(tf.equal(distinct, ids), rule, ids))
    with after(checks):
        return _identity(labels)


def _identity(labels: Labels) -> Labels:
    return Labels(*(None if part is None else tf.identity(part) for part in labels))


def check_probabilities(labels: Labels, asked_by: str) -> Labels:
    """Returns labels after checking that their values can be probabilities, for `asked_by`.

    Raises:
        tf.errors.InvalidArgumentError: A value is negative, or the sum over an example exceeds 1 by
            more than rounding (1e-3, or the dtype's epsilon). Raised when the graph runs.
    """
    values: Any = labels.values
    mass: Any = labels.mass
    most = 1 + (2**-7 if values.dtype == tf.bfloat16 else 1e-3)
    rule = f"{asked_by}: the probabilities of an example's labels must"
    checks = [
        _check_each(values >= 0, f"{rule} be at least 0; got", values),
        _check_each(mass <= most, f"{rule} add up to at most 1; got", mass),
    ]
    with after(checks):
        return _identity(labels)


def _from_pair(pair: SoftLabels, batch_shape: Any) -> tuple[Labels, list[Check | None]]:
    """Reads ids and values."""
    ids, values = _as_int64(pair.ids), pair.values
    if not values.dtype.is_floating:
        raise TypeError(
            f"the values of ids (probabilities) must be floating; got dtype {values.dtype.name}"
        )
    rule = "labels: ids and their values (probabilities) must have the same form and shape"
    forms = [_form(ids), _form(values)]
    if forms[0] != forms[1] or not ids.shape.is_compatible_with(values.shape):
        raise ValueError(f"{rule}; got {forms[0]} {ids.shape} and {forms[1]} {values.shape}")
    if isinstance(ids, tf.SparseTensor):
        ids, values = tf.sparse.reorder(ids), tf.sparse.reorder(values)
    same = [_equal(*parts) for parts in zip(_layout(ids), _layout(values), strict=True)]
    batch_rank = 1 if batch_shape is None else batch_shape.shape[0]
    got = [_extent(ids), "and", _extent(values)]
    checks: list[Check | None] = [
        Check(tf.reduce_all(same), lambda: [f"{rule}, row by row; got", *got])
    ]
    ids, values = _to_dense(ids, batch_rank, PADDING), _to_dense(values, batch_rank, 0)
    checks.append(_check_batch_shape(ids, batch_shape))
    ids, values = _flatten_batch(ids, batch_rank), _flatten_batch(values, batch_rank)
    return Labels(ids, _of_shape(values, tf.shape(ids))), checks


def _of_shape(values: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Cuts or pads `[N, K]` to a shape, so that for a wrong shape a check fails, not an op."""
    values = values[: shape[0], : shape[1]]
    missing = shape - tf.shape(values)
    return tf.pad(values, tf.stack([tf.zeros_like(missing), missing], axis=1))


def _extent(x: Any) -> tf.Tensor:
    return x.bounding_shape() if isinstance(x, tf.RaggedTensor) else tf.shape(x)


def _form(x: Any) -> str:
    composite = isinstance(x, (tf.RaggedTensor, tf.SparseTensor))
    return f"a {type(x).__name__}" if composite else "a dense tensor"


def _layout(x: Any) -> list[tf.Tensor]:
    if isinstance(x, tf.RaggedTensor):
        return list(x.nested_row_splits)
    return [x.indices, x.dense_shape] if isinstance(x, tf.SparseTensor) else [tf.shape(x)]


def _equal(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    same = tf.raw_ops.Equal(x=left, y=right, incompatible_shape_error=False)
    return tf.equal(tf.size(left), tf.size(right)) & tf.reduce_all(same)


def _from_targets(
    targets: tf.SparseTensor, num_classes: int, batch_shape: Any
) -> tuple[Labels, list[Check | None]]:
    """Reads `[B, C]` targets: an id and a value per entry."""
    static_rank = None if batch_shape is None else batch_shape.shape[0]
    if targets.shape.rank != 2 or targets.shape[1] not in (None, num_classes):
        raise ValueError(
            f"sparse targets must have shape [B, C] with C = {num_classes}; got {targets.shape} of "
            f"{targets.dtype.name} (class ids, as values, must be integers)"
        )
    if static_rank not in (None, 1):
        raise ValueError(
            f"sparse targets must be for hidden activations [B, D]; got {static_rank} batch "
            "dimensions"
        )
    targets = tf.sparse.reorder(targets)
    num_columns = targets.dense_shape[1]
    rule = f"sparse targets must have as many columns as there are classes, {num_classes}; got"
    with after([Check(tf.equal(num_columns, num_classes), lambda: [rule, num_columns])]):
        rows, columns = tf.identity(targets.indices[:, 0]), targets.indices[:, 1]

    def padded(values: tf.Tensor, padding: Any) -> tf.Tensor:
        ragged = tf.RaggedTensor.from_value_rowids(values, rows, targets.dense_shape[0])
        return ragged.to_tensor(padding)

    ids, values = padded(columns, tf.constant(PADDING, tf.int64)), padded(targets.values, 0.0)
    return Labels(ids, values), [_check_batch_shape(ids, batch_shape)]


def _to_dense(y_true: Any, batch_rank: int, padding: int) -> tf.Tensor:
    if isinstance(y_true, tf.Tensor):
        return y_true
    if y_true.shape.rank not in (None, batch_rank + 1):  # an unknown rank is checked later
        raise ValueError(
            f"{type(y_true).__name__} labels must have rank {batch_rank + 1}; "
            f"got shape {y_true.shape}"
        )
    filler = tf.constant(padding, y_true.dtype)
    if isinstance(y_true, tf.RaggedTensor):
        return y_true.to_tensor(filler)
    return tf.sparse.to_dense(tf.sparse.reorder(y_true), default_value=filler)


def _as_int64(y_true: Any) -> Any:
    if not y_true.dtype.is_integer or y_true.dtype == tf.uint64:
        raise TypeError(
            f"labels must be integer class ids that fit into int64; got dtype {y_true.dtype.name}. "
            "A float32, to which Keras casts arrays of float64, can't hold every id above "
            "16,777,216: cast ids to int64 in the data pipeline. Keras also casts the labels "
            "of a loss that is a function: subclass HeadLoss instead. Of one-hot rows "
            "np.argmax(y, axis=-1) makes ids."
        )
    return tf.cast(y_true, tf.int64)


def _check_batch_shape(ids: tf.Tensor, batch_shape: tf.Tensor | None) -> Check | None:
    if batch_shape is None:
        return None
    if ids.shape.rank is not None and ids.shape.rank < batch_shape.shape[0]:
        return None  # a wrong rank raises later
    got = tf.shape(ids)[: batch_shape.shape[0]]
    rule = "labels: the first dimensions must be the batch dimensions of the hidden activations"
    is_same = tf.reduce_all(tf.equal(got, batch_shape))
    return Check(is_same, lambda: [f"{rule} (or logits),", batch_shape, "; got", got])


def _flatten_batch(ids: tf.Tensor, batch_rank: int) -> tf.Tensor:
    """Reshapes ids of rank `batch_rank` or one more to `[N, K]`."""
    rule = f"labels must have rank {batch_rank} (one label per example) or {batch_rank + 1} "
    rule += "(several labels, padded with -1)"
    rank = ids.shape.rank
    if rank is None:
        # Keras relaxes shapes that differ between calls, up to an unknown rank.
        known = (tf.rank(ids) >= batch_rank) & (tf.rank(ids) <= batch_rank + 1)
        with after([Check(known, lambda: [f"{rule}; got shape", tf.shape(ids)])]):
            shape = tf.shape(tf.identity(ids))
        size = [tf.reduce_prod(shape[:batch_rank]), tf.reduce_prod(shape[batch_rank:])]
        return tf.reshape(ids, size)
    if rank not in (batch_rank, batch_rank + 1):
        raise ValueError(f"{rule}; got shape {ids.shape}")
    if rank == batch_rank:
        ids = ids[..., tf.newaxis]
    if batch_rank == 1:
        return ids
    shape = tf.shape(ids)
    return tf.reshape(ids, [tf.reduce_prod(shape[:-1]), ids.shape[-1] or shape[-1]])


def _check_range(ids: tf.Tensor, num_classes: int) -> Check:
    rule = f"labels: each id must be at least 0 and less than {num_classes}, or -1 for padding"
    hint = "(another id for padding: ignore_class of the loss and of the metric)"
    return _check_each((ids >= PADDING) & (ids < num_classes), f"{rule}; got id", ids, hint)


def _check_each(holds: tf.Tensor, rule: str, values: tf.Tensor, *hint: str) -> Check:
    """Checks a condition for each of `[N, K]` or `[N]`; the error has the first that fails."""
    place = "at [example of the batch, position]" if holds.shape.rank == 2 else "in example"

    def message() -> list[Any]:
        first = tf.where(~holds)[:1]
        return [rule, tf.gather_nd(values, first), place, first, *hint]

    return Check(tf.reduce_all(holds), message)


def _check_no_indicators(ids: tf.Tensor, num_classes: int, is_sparse: bool) -> Check | None:
    """Raises for zeros and ones in C columns (in a sparse matrix: ones, and -1 elsewhere).

    With more than two classes, a row of C distinct ids has other values, or padding.
    """
    if num_classes == 2 or ids.shape[1] not in (None, num_classes):
        return None
    if is_sparse:
        indicators = tf.reduce_any(ids == 1) & tf.reduce_all((ids == 1) | (ids == PADDING))
    else:
        indicators = (tf.size(ids) > 0) & tf.reduce_all((ids == 0) | (ids == 1))
    return Check(
        tf.not_equal(tf.shape(ids)[1], num_classes) | ~indicators,
        lambda: [
            f"labels must be class ids; got a matrix with {num_classes} columns, one per class, "
            "and no value above 1, which looks like indicators. Pass ids padded with -1, such as "
            "tf.ragged.constant([[3, 17], [5]]), or a sparse matrix of booleans: y.astype(bool)"
        ],
    )


def _drop_repeats(ids: tf.Tensor) -> tf.Tensor:
    if ids.shape[-1] == 1:
        return ids
    order = tf.argsort(ids, axis=1, stable=True)
    ordered = tf.gather(ids, order, batch_dims=1)
    nothing = tf.fill([tf.shape(ids)[0], 1], tf.constant(PADDING, tf.int64))
    before = tf.concat([nothing, ordered], axis=1)[:, :-1]
    first = tf.gather(ordered != before, tf.argsort(order, axis=1), batch_dims=1)
    return tf.where(first, ids, PADDING)
