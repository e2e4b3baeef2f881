# SPDX-License-Identifier: Apache-2.0
"""Statistics of the logits in bounded memory, in TensorFlow's own ops alone."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.devices import is_on_gpu
from tfx_largeout.ops.exact.products import rounded_for
from tfx_largeout.ops.exact.ranks_from_logits import check_labels, count_above, order_keys
from tfx_largeout.run_time_checks import Check, after

# How many logits exist at a time. On a CPU 4 MiB in float32, which caches hold; on a GPU 256 MiB,
# as each block costs it the time of some twenty launches.
_BLOCK_ELEMENTS, _BLOCK_ELEMENTS_ON_GPU = 2**20, 2**26
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

    Cost: O(B C D) once, twice where labels are given; memory for a few blocks of 2^20 logits, or
    2^26 on a GPU.

    Arguments, result and errors: those of `streamed_logits`.
    """
    # Counts of classes are int32 in loops: those a GPU leaves on the host, so that no turn waits.
    num_classes = num_rows_of(kernel)
    checks = _input_checks(hidden, kernel, bias, labels, k)
    checks += [shard.check(num_classes), check_labels(labels, shard.num_classes)]
    with after(checks):
        hidden = tf.identity(hidden)
        rows = shard.row_of(labels, num_classes)

    def logits_of(start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        return logits_of_block(hidden, kernel, bias, start, end, products)

    block = tf.maximum(tf.minimum(classes_of_block(hidden, kernel), num_classes), 1)
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


def classes_of_block(hidden: tf.Tensor, kernel: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Returns how many classes of W `[C, D]` make up a block for h `[B, D]`, `[]` int32.

    So few that their logits `[B, n]` and their rows of W `[n, D]` are small.
    """
    return _classes_of(hidden, _BLOCK_ELEMENTS_ON_GPU if is_on_gpu(kernel) else _BLOCK_ELEMENTS)


def classes_of_small_block(hidden: tf.Tensor) -> tf.Tensor:
    """Returns as `classes_of_block` what a CPU takes, also where W is on a GPU."""
    return _classes_of(hidden, _BLOCK_ELEMENTS)


def _classes_of(hidden: tf.Tensor, elements: int) -> tf.Tensor:
    larger = tf.reduce_max(tf.shape(hidden))
    return tf.maximum(elements // tf.maximum(larger, 1), _MIN_BLOCK)


def ids_between(start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Returns start, start + 1, ... end - 1 of int32 counts, `[n]` int64."""
    return tf.cast(tf.range(start, end), tf.int64)


def logits_of_block(
    hidden: tf.Tensor,
    kernel: tf.Tensor | tf.Variable,
    bias: tf.Tensor | tf.Variable | None,
    start: tf.Tensor,
    end: tf.Tensor,
    products: str = "float32",
) -> tf.Tensor:
    """Returns the logits of classes [start, end), int32, `[B, end - start]`, of the dtype of h.

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
        end = start + tf.minimum(block, num_classes - start)
        logits = logits_of(start, end)
        # The running sum over blocks is float64, so that its rounding doesn't add up.
        block_sum = tf.cast(tf.reduce_logsumexp(logits, axis=1), tf.float64)
        logsumexp = tf.reduce_logsumexp(tf.stack([logsumexp, block_sum], axis=1), axis=1)

        first = tf.cast(start, tf.int64)
        columns = label_rows - first
        here = (columns >= 0) & (columns < tf.cast(end - start, tf.int64))
        columns = tf.where(here, columns, 0)
        targets = tf.where(here, tf.gather(logits, columns, batch_dims=1), targets)

        if k > 0:
            best = _best_columns(logits, tf.minimum(k, end - start))
            scores = tf.concat([scores, tf.gather(logits, best, batch_dims=1)], axis=1)
            ids = tf.concat([ids, best + first], axis=1)
            # Earlier blocks stand first, so the lower position is the lower id here too.
            best = _best_columns(scores, tf.minimum(k, tf.shape(scores)[1]))
            scores = tf.gather(scores, best, batch_dims=1)
            ids = tf.gather(ids, best, batch_dims=1)
        return end, logsumexp, targets, scores, ids

    empty = tf.concat([rows, [0]], axis=0)
    _, logsumexp, targets, scores, ids = tf.while_loop(
        lambda start, *_: start < num_classes,
        body,
        (
            tf.zeros([], tf.int32),
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
        end = start + tf.minimum(block, num_classes - start)
        keys = order_keys(logits_of(start, end))
        classes = shard.class_of(ids_between(start, end))
        return end, ranks + count_above(keys, classes, target_keys, labels)

    _, ranks = tf.while_loop(
        lambda start, *_: start < num_classes,
        body,
        (tf.zeros([], tf.int32), tf.zeros(tf.shape(labels), tf.int64)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
        parallel_iterations=1,
    )
    return ranks


def _best_columns(logits: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.math.top_k(order_keys(logits), k).indices, tf.int64)


def _shape(table: tf.Tensor | tf.Variable) -> tf.Tensor:
    if isinstance(table, tf.Variable):
        return tf.raw_ops.VariableShape(input=table.handle, out_type=tf.int32)
    return tf.shape(table)


def num_rows_of(table: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Returns how many rows a matrix has, `[]` int32."""
    return _shape(table)[0]


def _rows(table: tf.Tensor | tf.Variable, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    if not isinstance(table, tf.Variable):
        return table[start:end]
    rows = tf.raw_ops.ResourceGather(
        resource=table.handle, indices=ids_between(start, end), dtype=table.dtype
    )
    return tf.ensure_shape(rows, [None, *table.shape[1:]])


def _input_checks(
    hidden: tf.Tensor,
    kernel: tf.Tensor | tf.Variable,
    bias: tf.Tensor | tf.Variable | None,
    labels: tf.Tensor,
    k: int,
) -> list[Check | None]:
    """Returns checks of what the static shapes may have left open."""
    num_classes, width = _shape(kernel)[0], _shape(kernel)[1]
    batch = _shape(hidden)[0]
    checks: list[Check | None] = [
        _check_equal("hidden must have as many columns as kernel", _shape(hidden)[1], width),
        _check_equal("labels must have as many rows as hidden", _shape(labels)[0], batch),
        Check(
            k <= num_classes,
            lambda: ["k must be at most num_classes, which is", num_classes, "; got", k],
        ),
    ]
    if bias is not None:
        rule = "bias must have one entry for each row of kernel"
        checks.append(_check_equal(rule, _shape(bias)[0], num_classes))
    return checks


def _check_equal(rule: str, got: tf.Tensor, want: tf.Tensor) -> Check:
    return Check(tf.equal(got, want), lambda: [f"{rule}:", want, "; got", got])
