# SPDX-License-Identifier: Apache-2.0
"""Exact statistics of the logits of all classes, which are never built."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.keras_internals import variable_behind
from tfx_largeout.ops.checks import check_shape
from tfx_largeout.ops.devices import is_on_gpu
from tfx_largeout.ops.exact.ranks_from_logits import check_labels
from tfx_largeout.ops.exact.streamed_logits_composed import (
    num_rows_of,
    streamed_logits_composed,
)
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.run_time_checks import after

_OP_DTYPES = (tf.float32, tf.bfloat16)
_KERNEL_DTYPES = (tf.float32, tf.bfloat16, tf.float16, tf.float64)
_MOST_BEST_ON_GPU = 1024
_WHOLE = ClassShard()
_NO_GRADIENT = (
    "streamed_logits is exact evaluation and has no gradient: call the model with training=True"
)


class StreamedLogits(NamedTuple):
    """What `streamed_logits` returns; floats are float32, or float64 for a float64 kernel."""

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
    +inf; it is -inf if all are -inf and where there is no class. Target logits and top scores are
    reported as they are. For ranks and the best k, where `tf.math.top_k` has no rule, a NaN logit
    counts as -inf: it never beats a number, and ties go to the lower id.

    Cost: O(B C D) time, W read once. Memory O(B (D + T (K + k) + N)) for T threads and N chunks of
    classes; N is at most 256, so that this does not grow with C.

    Args:
        hidden: h, `[B, D]`, floating; cast to the dtype to compute in.
        kernel: W, `[C, D]`, a `tf.Variable`, `keras.Variable` or tensor; float32, bfloat16,
            float16 or float64. A variable is passed by its resource handle and never copied.
        bias: b, `[C]`, likewise, or None. (The custom op reads it as a tensor.)
        labels: `[B, K]` integer class ids, padded with -1; K may be 0.
        k: How many of the best classes to return, 0 <= k <= C; a Python int.
        target_scores: Logits of the labels to rank, `[B, K]`, where some labels have no row in the
            kernel; or None: those that are found here. Shards add up their target logits, or those
            that `candidate_logits` gives in O(B K D). A label does not count as above itself,
            however its score was rounded.
        shard: Which classes of a layer the rows of the kernel are, C of them. Labels, ranks' ties
            and `top_ids` are then about ids in the layer; the target logit of a label of another
            shard is 0, and its rank is -1 without `target_scores`.
        implementation: `"auto"` (default): the custom op where the library loads and has the
            kernel's dtype, and on a GPU where its GPU kernels are in use and serve the call;
            else TensorFlow's own ops. `"op"` or `"composed"` to insist.

    Returns:
        A `StreamedLogits`. All arithmetic is float32 for a kernel of at most 32 bits, float64 for
        a float64 kernel.

    Raises:
        ValueError: An argument has a wrong shape or value.
        TypeError: An argument has a wrong dtype.
        RuntimeError: `implementation="op"` and the library is not there.
        InvalidArgumentError: A label is not in [-1, C), or shapes known only at run time disagree.
        LookupError: A gradient is asked for.
    """
    kernel, bias = _unwrap(kernel), None if bias is None else _unwrap(bias)
    hidden, labels = tf.convert_to_tensor(hidden), _as_labels(labels)
    _check(hidden, kernel, bias, labels, k)
    compute_dtype = tf.float64 if kernel.dtype == tf.float64 else tf.float32
    hidden = tf.cast(hidden, compute_dtype)
    if target_scores is not None:
        target_scores = tf.cast(target_scores, compute_dtype)
        _check_rank("target_scores", target_scores, 2)
        rule = "[B, K] as the labels"
        with after([check_shape("target_scores", rule, target_scores, tf.shape(labels))]):
            target_scores = tf.identity(target_scores)
    num_rows = kernel.shape[0] if kernel.shape[0] is not None else num_rows_of(kernel)
    shard = shard.tensors(num_rows)
    gpu_dtypes = _OP_DTYPES if k <= _MOST_BEST_ON_GPU else ()
    module = op_module(
        implementation, "tfx_streamed_logits", "kernel", kernel, _OP_DTYPES, gpu_dtypes
    )
    if module is not None and is_on_gpu(kernel):
        with after([check_labels(labels, shard.num_classes)]):  # which the GPU kernel can't refuse
            labels = tf.identity(labels)
    if module is None:
        outputs = streamed_logits_composed(
            hidden, kernel, bias, labels, int(k), target_scores, shard
        )
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


def _check(
    hidden: tf.Tensor,
    kernel: tf.Tensor | tf.Variable,
    bias: tf.Tensor | tf.Variable | None,
    labels: tf.Tensor,
    k: int,
) -> None:
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
    for name, tensor, rank in (("hidden", hidden, 2), ("kernel", kernel, 2), ("labels", labels, 2)):
        _check_rank(name, tensor, rank)
    num_classes, width = kernel.shape
    _check_dimension("hidden", "[B, D] with the D of kernel", hidden.shape[1], width)
    _check_dimension("labels", "[B, K] with the B of hidden", labels.shape[0], hidden.shape[0])
    if bias is not None:
        _check_rank("bias", bias, 1)
        _check_dimension("bias", "[C] with the C of kernel", bias.shape[0], num_classes)
    integer_argument("k", k, at_least=0)
    if num_classes is not None and k > num_classes:
        raise ValueError(f"k must be at most num_classes={num_classes}; got {k}")


def _check_rank(name: str, tensor: tf.Tensor | tf.Variable, rank: int) -> None:
    if tensor.shape.rank != rank:
        raise ValueError(f"{name} must have rank {rank}; got shape {tensor.shape}")


def _check_dimension(name: str, rule: str, got: int | None, want: int | None) -> None:
    if got is not None and want is not None and got != want:
        raise ValueError(f"{name} must be {rule}, which is {want}; got {got}")
