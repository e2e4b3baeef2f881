# SPDX-License-Identifier: Apache-2.0
"""Exact statistics of the logits of all classes, which are never built."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, integer_argument
from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.devices import is_on_gpu
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.keras_internals import variable_behind
from tfx_largeout.ops.checks import check_equal, check_shape, require_rank
from tfx_largeout.ops.exact.logit_blocks import LogitBlocks, shape_of
from tfx_largeout.ops.exact.ranks_from_logits import check_labels, count_above, order_keys
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.variable_rows import ids_between
from tfx_largeout.run_time_checks import Check, after

_OP_DTYPES = (tf.float32, tf.bfloat16)
_KERNEL_DTYPES = (tf.float32, tf.bfloat16, tf.float16, tf.float64)
_MOST_BEST_ON_GPU = 1024
_WHOLE = ClassShard()
_NO_GRADIENT = (
    "streamed_logits is exact evaluation and has no gradient: call the model with training=True"
)


class StreamedLogits(NamedTuple):
    """The result of `streamed_logits`; floats are float32, or float64 for a float64 kernel."""

    logsumexp: tf.Tensor
    """`[B]`: log sum_c exp(o_c)."""
    target_logits: tf.Tensor
    """`[B, K]`; 0 where the label is -1."""
    target_ranks: tf.Tensor
    """`[B, K]` int64: how many classes rank above the label; -1 where the label is -1."""
    top_scores: tf.Tensor
    """`[B, k]`, falling, ties by lower id."""
    top_ids: tf.Tensor
    """`[B, k]` int64."""


def streamed_logits(
    hidden: Any,
    kernel: Any,
    bias: Any,
    labels: Any,
    k: int,
    *,
    target_scores: Any = None,
    shard: ClassShard = _WHOLE,
    implementation: str = "auto",
) -> StreamedLogits:
    """Partition function, target logits, target ranks and best classes, without the logits.

    With o = W h + b, in one pass over blocks of classes: log sum_c exp(o_c); o_y for each label y;
    its rank #{c : o_c > o_y} + #{c < y : o_c = o_y}; and the k best classes, ties by lower id.
    Ids and ranks don't depend on the number of threads.

    NaN and infinity: the logsumexp is NaN if any logit of the example is NaN, else +inf if any is
    +inf; it is -inf if all are -inf or there is no class. Target logits and top scores are returned
    unchanged. For ranks and the best k, for which `tf.math.top_k` has no rule, a NaN logit counts
    as -inf: it never beats a number, and ties go to the lower id.

    Cost: O(B C D) time, W read once. Memory O(B (D + T (K + k) + N)) for T threads and N chunks of
    classes; N is at most 256, so that this does not grow with C.

    Args:
        hidden: h, `[B, D]`, floating; cast to the dtype to compute in.
        kernel: W, `[C, D]`, a `tf.Variable`, `keras.Variable` or tensor; float32, bfloat16,
            float16 or float64. A variable is passed by its resource handle and never copied.
        bias: b, `[C]`, likewise, or None. (The custom op reads it as a tensor.)
        labels: `[B, K]` integer class ids, padded with -1; K may be 0.
        k: The number of best classes, 0 <= k <= C; a Python int.
        target_scores: Logits of the labels to rank, `[B, K]`, if some labels have no row in the
            kernel; or None: the ones computed here. Shards add up their target logits, or
            the results of `candidate_logits` in O(B K D). A label never counts as above itself,
            for any rounding of its score.
        shard: The classes of a layer to which the C rows of the kernel belong. Labels, ties of
            ranks and `top_ids` then refer to ids in the layer; the target logit of a label of
            another shard is 0, and its rank is -1 without `target_scores`.
        implementation: See `ops`, which has the errors, too.

    Returns:
        A `StreamedLogits`. All arithmetic is float32 for a kernel of at most 32 bits, float64 for
        a float64 kernel.

    Raises:
        LookupError: A gradient is computed.
    """
    kernel, labels = _unwrap(kernel), _as_labels(labels)
    hidden, bias = exact_inputs(hidden, kernel, bias, k)
    require_rank("labels", labels, 2)
    _check_dimension("labels", "[B, K] with the B of hidden", labels.shape[0], hidden.shape[0])
    if target_scores is not None:
        target_scores = tf.cast(target_scores, hidden.dtype)
        require_rank("target_scores", target_scores, 2)
        rule = "[B, K] as the labels"
        with after([check_shape("target_scores", rule, target_scores, tf.shape(labels))]):
            target_scores = tf.identity(target_scores)
    num_rows = kernel.shape[0] if kernel.shape[0] is not None else shape_of(kernel)[0]
    shard = shard.tensors(num_rows)
    gpu_dtypes = _OP_DTYPES if k <= _MOST_BEST_ON_GPU else ()
    module = op_module(
        implementation, "tfx_streamed_logits", "kernel", kernel, _OP_DTYPES, gpu_dtypes
    )
    if module is not None and is_on_gpu(kernel):
        with after([check_labels(labels, shard.num_classes)]):  # not checked by the GPU kernel
            labels = tf.identity(labels)
    if module is None:
        logits = LogitBlocks(hidden, kernel, bias)
        outputs = streamed_logits_composed(logits, labels, int(k), target_scores, shard)
    else:
        outputs = _custom_op(module, hidden, kernel, bias, labels, int(k), target_scores, shard)
    logsumexp, targets, ranks, scores, ids = outputs
    return StreamedLogits(
        _without_gradient(logsumexp),
        _without_gradient(targets),
        ranks,
        _without_gradient(scores),
        ids,
    )


def _without_gradient(tensor: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.PreventGradient(input=tensor, message=_NO_GRADIENT)


def _unwrap(table: Any) -> tf.Tensor | tf.Variable:
    table = variable_behind(table)
    return table if isinstance(table, tf.Variable) else tf.convert_to_tensor(table)


def _as_labels(labels: Any) -> tf.Tensor:
    labels = tf.convert_to_tensor(labels)
    if not labels.dtype.is_integer:
        raise TypeError(f"labels must be integers; got dtype {labels.dtype.name}")
    return tf.cast(labels, tf.int64)


def _custom_op(
    module: ModuleType,
    hidden: tf.Tensor,
    kernel: tf.Tensor | tf.Variable,
    bias: tf.Tensor | tf.Variable | None,
    labels: tf.Tensor,
    k: int,
    target_scores: tf.Tensor | None,
    shard: ClassShard,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    scores = tf.zeros([0, 0]) if target_scores is None else target_scores
    bias = tf.zeros([0], kernel.dtype) if bias is None else tf.convert_to_tensor(bias)
    if isinstance(kernel, tf.Variable):
        return module.tfx_resource_streamed_logits(
            hidden, kernel.handle, bias, labels, scores, *shard, k=k
        )
    return module.tfx_streamed_logits(hidden, kernel, bias, labels, scores, *shard, k=k)


def exact_inputs(
    hidden: Any, kernel: tf.Tensor | tf.Variable, bias: Any, k: int
) -> tuple[tf.Tensor, tf.Tensor | tf.Variable | None]:
    """Returns h in the compute dtype, and b, both checked: as `streamed_logits`."""
    hidden, bias = tf.convert_to_tensor(hidden), None if bias is None else _unwrap(bias)
    if not hidden.dtype.is_floating:
        raise TypeError(f"hidden must be floating; got dtype {hidden.dtype.name}")
    if kernel.dtype not in _KERNEL_DTYPES:
        raise TypeError(
            f"kernel must be float32, bfloat16, float16 or float64; got dtype {kernel.dtype.name}"
        )
    if bias is not None and bias.dtype != kernel.dtype:
        raise TypeError(
            f"bias must have the dtype of kernel, {kernel.dtype.name}; got {bias.dtype.name}"
        )
    for name, tensor in (("hidden", hidden), ("kernel", kernel)):
        require_rank(name, tensor, 2)
    num_classes, width = kernel.shape
    _check_dimension("hidden", "[B, D] with the D of kernel", hidden.shape[1], width)
    if bias is not None:
        require_rank("bias", bias, 1)
        _check_dimension("bias", "[C] with the C of kernel", bias.shape[0], num_classes)
    integer_argument("k", k, at_least=0)
    if num_classes is not None:
        at_most_classes("k", k, num_classes)
    return tf.cast(hidden, tf.float64 if kernel.dtype == tf.float64 else tf.float32), bias


def _check_dimension(name: str, rule: str, got: int | None, want: int | None) -> None:
    if got is not None and want is not None and got != want:
        raise ValueError(f"{name} must be {rule}, which is {want}; got {got}")


def streamed_logits_composed(
    blocks: LogitBlocks,
    labels: tf.Tensor,
    k: int,
    target_scores: tf.Tensor | None,
    shard: ClassShard,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Same results as the custom op of `streamed_logits`, by a loop over blocks of classes.

    The first pass computes the partition function, the best k and the target logits; the second
    counts the classes above each target. Both compute a block in the same way, so that equal logits
    stay equal.

    Cost: O(B C D) once, twice where labels are given; memory for a few blocks of 2^20 logits, or
    2^26 on a GPU.
    """
    num_classes = blocks.num_classes
    checks = [*_input_checks(blocks, labels, k), shard.check(num_classes)]
    with after([*checks, check_labels(labels, shard.num_classes)]):
        blocks = blocks._replace(hidden=tf.identity(blocks.hidden))
        rows = shard.row_of(labels, num_classes)
    logsumexp, targets, scores, ids = _first_sweep(blocks, rows, k)
    if labels.shape[1] == 0:
        ranks = tf.zeros_like(labels)
    else:
        ranked = targets if target_scores is None else target_scores
        ranks = _rank_sweep(blocks, labels, ranked, shard)
        # A given score may be below the label's logit.
        above_itself = (rows >= 0) & (order_keys(targets) > order_keys(ranked))
        is_ranked = rows >= 0 if target_scores is None else labels >= 0
        ranks = tf.where(is_ranked, ranks - tf.cast(above_itself, tf.int64), -1)
    batch_size, num_labels = blocks.hidden.shape[0], labels.shape[1]
    return (
        tf.ensure_shape(logsumexp, [batch_size]),
        tf.ensure_shape(targets, [batch_size, num_labels]),
        tf.ensure_shape(ranks, [batch_size, num_labels]),
        tf.ensure_shape(scores, [batch_size, k]),
        tf.ensure_shape(shard.class_of(ids), [batch_size, k]),
    )


def best_by_blocks(
    blocks: LogitBlocks, k: int, allowed: ClassFilter
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns log Z of all rows, and scores and rows of the best k that a filter allows."""
    none = tf.zeros([tf.shape(blocks.hidden)[0], 0], tf.int64)
    with after(_input_checks(blocks, none, k)):
        blocks = blocks._replace(hidden=tf.identity(blocks.hidden))
    logsumexp, _, scores, ids = _first_sweep(blocks, none, k, allowed)
    return logsumexp, scores, ids


def _first_sweep(
    blocks: LogitBlocks, label_rows: tf.Tensor, k: int, allowed: ClassFilter | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns log Z, target logits, and scores and rows of the best k, of those allowed."""
    dtype, batch = blocks.hidden.dtype, tf.shape(blocks.hidden)[:1]

    def visit(start, end, logits, result):  # type: ignore[no-untyped-def]
        logsumexp, targets, scores, ids = result
        # The running sum over blocks is float64, so that rounding errors don't add up.
        block_sum = tf.cast(tf.reduce_logsumexp(logits, axis=1), tf.float64)
        logsumexp = tf.reduce_logsumexp(tf.stack([logsumexp, block_sum], axis=1), axis=1)

        first = tf.cast(start, tf.int64)
        columns = label_rows - first
        here = (columns >= 0) & (columns < tf.cast(end - start, tf.int64))
        columns = tf.where(here, columns, 0)
        targets = tf.where(here, tf.gather(logits, columns, batch_dims=1), targets)

        if k > 0:
            keys = order_keys(logits)
            if allowed is not None:  # -inf of allowed classes ranks above disallowed ones
                keys = allowed.masked(tf.maximum(keys, dtype.min), start, end)
            best = _best_columns(keys, tf.minimum(k, end - start))
            found = tf.gather(logits, best, batch_dims=1)
            best_ids = best + first
            if allowed is not None:
                hidden = tf.gather(keys, best, batch_dims=1) < dtype.min
                found = tf.where(hidden, tf.constant(float("-inf"), dtype), found)
                best_ids = tf.where(hidden, tf.constant(-1, tf.int64), best_ids)
            scores = tf.concat([scores, found], axis=1)
            ids = tf.concat([ids, best_ids], axis=1)
            # Earlier blocks come first, so the lower position has the lower id here, too.
            keys = order_keys(scores)
            if allowed is not None:
                keys = tf.where(ids < 0, keys, tf.maximum(keys, dtype.min))
            best = _best_columns(keys, tf.minimum(k, tf.shape(scores)[1]))
            scores = tf.gather(scores, best, batch_dims=1)
            ids = tf.gather(ids, best, batch_dims=1)
        return logsumexp, targets, scores, ids

    empty = tf.concat([batch, [0]], axis=0)
    nothing = (
        tf.fill(batch, tf.constant(float("-inf"), tf.float64)),
        tf.zeros(tf.shape(label_rows), dtype),
        tf.zeros(empty, dtype),
        tf.zeros(empty, tf.int64),
    )
    shapes = tuple(tf.TensorShape([None] * x.shape.rank) for x in nothing)
    logsumexp, *rest = blocks.fold(visit, nothing, shapes)
    return tf.cast(logsumexp, dtype), *rest


def _rank_sweep(
    blocks: LogitBlocks, labels: tf.Tensor, targets: tf.Tensor, shard: ClassShard
) -> tf.Tensor:
    target_keys = order_keys(targets)

    def visit(start, end, logits, ranks):  # type: ignore[no-untyped-def]
        classes = shard.class_of(ids_between(start, end))
        return ranks + count_above(order_keys(logits), classes, target_keys, labels)

    none = tf.zeros(tf.shape(labels), tf.int64)
    return blocks.fold(visit, none, tf.TensorShape([None, None]))


def _best_columns(keys: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.math.top_k(keys, k).indices, tf.int64)


def _input_checks(blocks: LogitBlocks, labels: tf.Tensor, k: int) -> list[Check | None]:
    """Returns checks that static shapes leave open."""
    (num_classes, width), (batch, columns) = (
        tf.unstack(shape_of(x), 2) for x in (blocks.kernel, blocks.hidden)
    )
    checks: list[Check | None] = [
        check_equal("hidden must have as many columns as kernel", columns, width),
        check_equal("labels must have as many rows as hidden", tf.shape(labels)[0], batch),
        Check(
            k <= num_classes,
            lambda: ["k must be at most num_classes, which is", num_classes, "; got", k],
        ),
    ]
    if blocks.bias is not None:
        rule = "bias must have one entry for each row of kernel"
        checks.append(check_equal(rule, shape_of(blocks.bias)[0], num_classes))
    return checks
