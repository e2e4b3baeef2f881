# SPDX-License-Identifier: Apache-2.0
"""Statistics of the logits in bounded memory, in TensorFlow's own ops alone."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfx_largeout.ops.checks import after
from tfx_largeout.ops.exact.class_shard import ClassShard
from tfx_largeout.ops.exact.products import rounded_for
from tfx_largeout.ops.exact.ranks_from_logits import check_labels, count_above, order_keys

_BLOCK_ELEMENTS = 2**20  # logits that exist at a time: 4 MiB in float32
_MIN_BLOCK = 64

LogitsOfBlock = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def streamed_logits_composed(
    hidden: tf.Tensor,
    kernel: tf.Tensor | tf.Variable,
    bias: tf.Tensor | tf.Variable | None,
    labels: tf.Tensor,
    k: int,
    target_scores: tf.Tensor | None,
    shard: ClassShard,
    products: str = "float32",
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Same results as the custom op of `streamed_logits`, by a loop over blocks of classes.

    The first sweep gives the partition function, the best k and the target logits, each taken out
    of its block; the second counts the classes above each target. Both sweeps compute a block in
    the same way, so that equal logits are equal.

    Cost: O(B C D) once, twice where labels are given; memory for a few blocks of 2^20 logits.

    Args:
        hidden: h, `[B, D]`, of the dtype to compute in: float32 or float64.
        kernel: W, `[C, D]`.
        bias: b, `[C]`, or None.
        labels: `[B, K]` int64, padded with -1.
        k: how many of the best classes to return; a Python int.
        target_scores: `[B, K]`, of the dtype to compute in, or None.
        shard: Which classes the rows of W are, in tensors.
        products: As `logits_of_block`.

    Returns:
        The five fields of `StreamedLogits`, in order.
    """
    num_classes = _shape(kernel)[0]
    checks = _input_checks(hidden, kernel, bias, labels, k)
    checks += [shard.check(num_classes), check_labels(labels, shard.num_classes)]
    with after(checks):
        hidden = tf.identity(hidden)
        rows = shard.row_of(labels, num_classes)

    def logits_of(start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        return logits_of_block(hidden, kernel, bias, start, end, products)

    block = tf.maximum(tf.minimum(classes_of_block(hidden), num_classes), 1)
    logsumexp, targets, scores, ids = _first_sweep(logits_of, hidden, rows, k, num_classes, block)
    ids = shard.class_of(ids)
    if labels.shape[1] == 0:
        ranks = tf.zeros_like(labels)
    else:
        ranked = targets if target_scores is None else target_scores
        ranks = _rank_sweep(logits_of, hidden, labels, ranked, shard, num_classes, block)
        # A score that was given may be below the label's own logit.
        above_itself = (rows >= 0) & (order_keys(targets) > order_keys(ranked))
        is_ranked = rows >= 0 if target_scores is None else labels >= 0
        ranks = tf.where(is_ranked, ranks - tf.cast(above_itself, tf.int64), -1)
    batch_size, num_labels = hidden.shape[0], labels.shape[1]
    return (
        tf.ensure_shape(logsumexp, [batch_size]),
        tf.ensure_shape(targets, [batch_size, num_labels]),
        tf.ensure_shape(ranks, [batch_size, num_labels]),
        tf.ensure_shape(scores, [batch_size, k]),
        tf.ensure_shape(ids, [batch_size, k]),
    )


def classes_of_block(hidden: tf.Tensor) -> tf.Tensor:
    """Returns how many classes make up a block for h `[B, D]`, `[]` int64.

    So few that their logits `[B, n]` and their rows of W `[n, D]` are small.
    """
    larger = tf.reduce_max(tf.shape(hidden, tf.int64))
    return tf.maximum(_BLOCK_ELEMENTS // tf.maximum(larger, 1), _MIN_BLOCK)


def logits_of_block(
    hidden: tf.Tensor,
    kernel: tf.Tensor | tf.Variable,
    bias: tf.Tensor | tf.Variable | None,
    start: tf.Tensor,
    end: tf.Tensor,
    products: str = "float32",
) -> tf.Tensor:
    """Returns the logits of classes [start, end), `[B, end - start]`, of the dtype of h.

    With `products="bfloat16"`, h and W are rounded to it first; sums are of the dtype of h.
    """
    weights = rounded_for(products, tf.cast(_rows(kernel, start, end), hidden.dtype))
    logits = tf.matmul(rounded_for(products, hidden), weights, transpose_b=True)
    if bias is not None:
        logits += tf.cast(_rows(bias, start, end), hidden.dtype)
    return logits


def _first_sweep(
    logits_of: LogitsOfBlock,
    hidden: tf.Tensor,
    label_rows: tf.Tensor,
    k: int,
    num_classes: tf.Tensor,
    block: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    dtype = hidden.dtype
    rows = tf.shape(hidden)[:1]

    def body(start, logsumexp, targets, scores, ids):  # type: ignore[no-untyped-def]
        end = tf.minimum(start + block, num_classes)
        logits = logits_of(start, end)
        # The running sum over blocks is float64, so that its rounding doesn't add up.
        block_sum = tf.cast(tf.reduce_logsumexp(logits, axis=1), tf.float64)
        logsumexp = tf.reduce_logsumexp(tf.stack([logsumexp, block_sum], axis=1), axis=1)

        here = (label_rows >= start) & (label_rows < end)
        columns = tf.where(here, label_rows - start, 0)
        targets = tf.where(here, tf.gather(logits, columns, batch_dims=1), targets)

        if k > 0:
            best = _best_columns(logits, tf.minimum(tf.constant(k, tf.int64), end - start))
            scores = tf.concat([scores, tf.gather(logits, best, batch_dims=1)], axis=1)
            ids = tf.concat([ids, best + start], axis=1)
            # Earlier blocks stand first, so the lower position is the lower id here too.
            width = tf.shape(scores, tf.int64)[1]
            best = _best_columns(scores, tf.minimum(tf.constant(k, tf.int64), width))
            scores = tf.gather(scores, best, batch_dims=1)
            ids = tf.gather(ids, best, batch_dims=1)
        return end, logsumexp, targets, scores, ids

    empty = tf.concat([rows, [0]], axis=0)
    _, logsumexp, targets, scores, ids = tf.while_loop(
        lambda start, *_: start < num_classes,
        body,
        (
            tf.zeros([], tf.int64),
            tf.fill(rows, tf.constant(float("-inf"), tf.float64)),
            tf.zeros(tf.shape(label_rows), dtype),
            tf.zeros(empty, dtype),
            tf.zeros(empty, tf.int64),
        ),
        shape_invariants=(
            tf.TensorShape([]),
            tf.TensorShape([None]),
            tf.TensorShape([None, None]),
            tf.TensorShape([None, None]),
            tf.TensorShape([None, None]),
        ),
        parallel_iterations=1,
    )
    return tf.cast(logsumexp, dtype), targets, scores, ids


def _rank_sweep(
    logits_of: LogitsOfBlock,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    targets: tf.Tensor,
    shard: ClassShard,
    num_classes: tf.Tensor,
    block: tf.Tensor,
) -> tf.Tensor:
    target_keys = order_keys(targets)

    def body(start, ranks):  # type: ignore[no-untyped-def]
        end = tf.minimum(start + block, num_classes)
        keys = order_keys(logits_of(start, end))
        classes = shard.class_of(tf.range(start, end))
        return end, ranks + count_above(keys, classes, target_keys, labels)

    _, ranks = tf.while_loop(
        lambda start, *_: start < num_classes,
        body,
        (tf.zeros([], tf.int64), tf.zeros(tf.shape(labels), tf.int64)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
        parallel_iterations=1,
    )
    return ranks


def _best_columns(logits: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    best = tf.math.top_k(order_keys(logits), tf.cast(k, tf.int32)).indices
    return tf.cast(best, tf.int64)


def _shape(table: tf.Tensor | tf.Variable) -> tf.Tensor:
    if isinstance(table, tf.Variable):
        return tf.raw_ops.VariableShape(input=table.handle, out_type=tf.int64)
    return tf.shape(table, tf.int64)


def num_rows_of(table: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Returns how many rows a matrix has, `[]` int64."""
    return _shape(table)[0]


def _rows(table: tf.Tensor | tf.Variable, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    if not isinstance(table, tf.Variable):
        return table[start:end]
    rows = tf.raw_ops.ResourceGather(
        resource=table.handle, indices=tf.range(start, end), dtype=table.dtype
    )
    return tf.ensure_shape(rows, [None, *table.shape[1:]])


def _input_checks(
    hidden: tf.Tensor,
    kernel: tf.Tensor | tf.Variable,
    bias: tf.Tensor | tf.Variable | None,
    labels: tf.Tensor,
    k: int,
) -> list[tf.Operation]:
    """Checks at run time what the static shapes may have left open."""
    num_classes, width = _shape(kernel)[0], _shape(kernel)[1]
    batch = _shape(hidden)[0]
    checks = [
        _check_equal("hidden must have as many columns as kernel", _shape(hidden)[1], width),
        _check_equal("labels must have as many rows as hidden", _shape(labels)[0], batch),
        tf.debugging.Assert(
            k <= num_classes, ["k must be at most num_classes, which is", num_classes, "; got", k]
        ),
    ]
    if bias is not None:
        rule = "bias must have one entry for each row of kernel"
        checks.append(_check_equal(rule, _shape(bias)[0], num_classes))
    return checks


def _check_equal(rule: str, got: tf.Tensor, want: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(tf.equal(got, want), [f"{rule}:", want, "; got", got])
