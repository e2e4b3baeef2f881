# SPDX-License-Identifier: Apache-2.0
"""The one normal form of labels: class ids `[N, K]`, padded with -1."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.run_time_checks import Check, after

PADDING = -1


class Labels(NamedTuple):
    """The classes of each example of a flattened batch, padded with -1.

    Attributes:
        ids: `[N, K]` int64, class ids, -1 where an example has fewer than K labels.
        values: `[N, K]` float, the target value of each label, or None where the labels came
            without. What stands at padding has no meaning.
        weights: `[N, K]` float, how much each label counts among those of its example, or None:
            all alike. What stands at padding has no meaning.
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
    def mean_weight(self) -> tf.Tensor | None:
        """`[N]`: the mean of the weights of each example's labels; None where there are none."""
        return None if self.weights is None else self._replace(weights=None).mean(self.weights)

    @property
    def positive(self) -> Labels:
        """Those with a target value above 0, all where the labels came without."""
        if self.values is None:
            return self
        return self._replace(ids=tf.where(self.values > 0, self.ids, PADDING))

    def where(self, kept: tf.Tensor) -> Labels:
        """Returns those of the examples for which `kept`, `[N]` bool, is True."""
        return Labels(*(None if part is None else tf.boolean_mask(part, kept) for part in self))

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the mean of `values` over each example's labels, as they are weighted.

        Args:
            values: `[N, K]` float, a value a label. What stands at padding is ignored.

        Returns:
            `[N]` float; 0 for an example without labels, or of which all have a weight of 0.
        """
        if self.weights is None:
            total = tf.reduce_sum(tf.where(self.mask, values, 0), axis=-1)
            return tf.math.divide_no_nan(total, tf.cast(self.counts, values.dtype))
        weights = tf.where(self.mask, tf.cast(self.weights, values.dtype), 0)
        total = tf.reduce_sum(tf.where(weights > 0, weights * values, 0), axis=-1)
        return tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=-1))


def normalize_labels(
    y_true: Any, num_classes: int, batch_shape: Any = None, ignore_class: int | None = None
) -> Labels:
    """Brings labels of every accepted form into the normal form, and checks them.

    | form | shape |
    |---|---|
    | one label an example | `[B]` or `[B, 1]` |
    | several labels, padded with -1 | `[B, K]` |
    | `tf.RaggedTensor` | `[B, None]` |
    | `tf.SparseTensor` whose *values* are the ids, as `tf.io.VarLenFeature` reads them | `[B, K]` |
    | `tf.SparseTensor` of *floats*: the targets themselves, ids are its columns | `[B, C]` |

    With hidden activations `[B, T, D]` the same holds for each position of a dense tensor: `[B, T]`
    is one label a position, `[B, T, K]` several. The batch dimensions come out flattened to N.

    Ids keep their integer dtype all the way: above 2^24 a float32 can't tell them apart. The labels
    of an example are a set: an id that a row repeats becomes padding from its second time on.

    Cost: O(N K log K).

    Args:
        y_true: Labels in one of the forms above, of any integer dtype that fits into int64.
        num_classes: The number of classes C.
        batch_shape: The batch dimensions of what the labels are for, such as
            `tf.shape(hidden)[:-1]`: an integer vector of known length. Default: whatever the labels
            have, as one dimension.
        ignore_class: An id, of a class or not, that is read as -1. Default None: no other one.

    Returns:
        `Labels` with ids `[N, K]` int64, and values only if targets were given.

    Raises:
        TypeError: The labels are None, or not integers that fit into int64 (nor sparse targets).
        ValueError: The rank fits no form, sparse targets do not have C columns, or there is an
            `ignore_class` with them.
        tf.errors.InvalidArgumentError: The batch dimensions are not `batch_shape`. An id is neither
            in [0, C) nor -1; the first such id is named with its example and position. The labels
            are an indicator matrix: C columns, in which nothing but 0 and 1 stands (of a sparse
            one: nothing but 1). Raised when the graph runs.
    """
    if batch_shape is not None:
        batch_shape = tf.cast(tf.convert_to_tensor(batch_shape), tf.int32)
    if y_true is None:
        raise TypeError("labels must be integer class ids that fit into int64; got None")
    if not isinstance(y_true, (tf.RaggedTensor, tf.SparseTensor)):
        y_true = tf.convert_to_tensor(y_true)
    if isinstance(y_true, tf.SparseTensor) and y_true.dtype.is_floating:
        if ignore_class is not None:
            raise ValueError(
                "ignore_class must be None for sparse targets with values of their own, which are "
                f"ids of columns; got {ignore_class}. Leave the entries out of the targets."
            )
        return _from_targets(y_true, num_classes, batch_shape)
    batch_rank = 1 if batch_shape is None else batch_shape.shape[0]
    ids = _to_dense(y_true, batch_rank)
    checks = [_check_batch_shape(ids, batch_shape)]
    ids = _flatten_batch(ids, batch_rank)
    is_sparse = isinstance(y_true, tf.SparseTensor)
    checks.append(_check_no_indicators(ids, num_classes, is_sparse))
    if ignore_class is not None:
        ids = tf.where(ids == ignore_class, tf.constant(PADDING, tf.int64), ids)
    checks.append(_check_range(ids, num_classes))
    with after(checks):
        return Labels(_drop_repeats(tf.identity(ids)))


def _from_targets(targets: tf.SparseTensor, num_classes: int, batch_shape: Any) -> Labels:
    """Reads `[B, C]` targets: an id and a value for each entry that is there."""
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
    with after([_check_batch_shape(ids, batch_shape), _check_range(ids, num_classes)]):
        return Labels(tf.identity(ids), values)


def _to_dense(y_true: Any, batch_rank: int) -> tf.Tensor:
    if isinstance(y_true, tf.Tensor):
        return _as_int64(y_true)
    if y_true.shape.rank not in (None, batch_rank + 1):  # one that is not known is checked later
        raise ValueError(
            f"{type(y_true).__name__} labels must have rank {batch_rank + 1}; "
            f"got shape {y_true.shape}"
        )
    y_true = _as_int64(y_true)
    if isinstance(y_true, tf.RaggedTensor):
        return y_true.to_tensor(PADDING)
    return tf.sparse.to_dense(tf.sparse.reorder(y_true), default_value=PADDING)


def _as_int64(y_true: Any) -> Any:
    if not y_true.dtype.is_integer or y_true.dtype == tf.uint64:
        raise TypeError(
            f"labels must be integer class ids that fit into int64; got dtype {y_true.dtype.name}. "
            "A float32, to which Keras casts arrays of float64, can't hold every id above "
            "16,777,216: cast ids to int64 in the data pipeline. Of one-hot rows "
            "np.argmax(y, axis=-1) makes ids."
        )
    return tf.cast(y_true, tf.int64)


def _check_batch_shape(ids: tf.Tensor, batch_shape: tf.Tensor | None) -> Check | None:
    if batch_shape is None:
        return None
    if ids.shape.rank is not None and ids.shape.rank < batch_shape.shape[0]:
        return None  # refused by its rank
    got = tf.shape(ids)[: batch_shape.shape[0]]
    rule = "labels: the first dimensions must be the batch dimensions of the hidden activations"
    is_same = tf.reduce_all(tf.equal(got, batch_shape))
    return Check(is_same, lambda: [f"{rule} (or logits),", batch_shape, "; got", got])


def _flatten_batch(ids: tf.Tensor, batch_rank: int) -> tf.Tensor:
    """Reshapes ids of rank `batch_rank` or one more to `[N, K]`."""
    rule = f"labels must have rank {batch_rank} (one label an example) or {batch_rank + 1} (several"
    rule += " labels, padded with -1)"
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
    bad = (ids < PADDING) | (ids >= num_classes)
    rule = f"labels: each id must be at least 0 and less than {num_classes}, or -1 for padding"

    def message() -> list[Any]:
        first = tf.where(bad)[:1]
        place = "at [example of the batch, position]"
        hint = "(another id for padding: ignore_class of the loss and of the metric)"
        return [f"{rule}; got id", tf.gather_nd(ids, first), place, first, hint]

    return Check(~tf.reduce_any(bad), message)


def _check_no_indicators(ids: tf.Tensor, num_classes: int, is_sparse: bool) -> Check | None:
    """Refuses zeros and ones in C columns; of a sparse matrix ones, and -1 where nothing stood.

    With more than two classes a row of C different ids has other values, or padding.
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
            f"labels must be class ids; got a matrix with {num_classes} columns, one a class, and "
            "no value above 1, which looks like indicators. Pass ids padded with -1, such as "
            "tf.ragged.constant([[3, 17], [5]]), or a tf.SparseTensor of floats"
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
