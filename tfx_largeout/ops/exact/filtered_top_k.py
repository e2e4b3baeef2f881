# SPDX-License-Identifier: Apache-2.0
"""The best k of the classes that each example may find, in the exact pass over all classes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.exact.logit_blocks import LogitBlocks
from tfx_largeout.ops.exact.streamed_logits import best_by_blocks, exact_inputs
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.statistics import TopScores

_WHOLE = ClassShard()


def filtered_top_k(
    hidden: Any,
    kernel: Any,
    bias: Any,
    k: int,
    allowed: ClassFilter,
    *,
    shard: ClassShard = _WHOLE,
    implementation: str = "auto",
) -> TopScores:
    """Returns the k best classes that a filter allows, as `streamed_logits` does.

    If an example may find fewer than k, -inf and -1 follow. `log_partition` is over all classes.

    Cost: as `streamed_logits`, and O(B E log E): a class is looked up in a filter only if its logit
    is among the best so far. Memory: also 4 B E bytes.

    Args:
        hidden: h, `[B, D]`, floating.
        kernel: W, `[C, D]`, a variable, floating.
        bias: b, `[C]`, or None.
        k: The number of best classes, 0 <= k <= C; a Python int.
        allowed: The filter: excluded ids of the layer, and the groups of the rows of W.
        shard: As `streamed_logits`.
        implementation: See `ops`, which has the errors, too.
    """
    kernel = bare_variable(kernel)
    k = integer_argument("k", k, at_least=0)
    hidden, bias = exact_inputs(hidden, kernel, bias, k)
    shard = shard.tensors(kernel.shape[0])
    module = op_module(implementation, "tfx_filtered_top_k", "kernel", kernel, OP_DTYPES)
    if module is None:
        best = _composed(LogitBlocks(hidden, kernel, bias), k, allowed, shard)
    else:
        none = tf.zeros([0], tf.int32)
        best = module.tfx_filtered_top_k(
            hidden,
            kernel.handle,
            tf.zeros([0], kernel.dtype) if bias is None else tf.convert_to_tensor(bias),
            allowed.excluded,
            none if allowed.groups is None else allowed.groups,
            none if allowed.wanted is None else allowed.wanted,
            *shard,
            k=k,
        )
    logsumexp, scores, ids = best
    return TopScores(scores, ids, logsumexp)


def _composed(
    blocks: LogitBlocks, k: int, allowed: ClassFilter, shard: ClassShard
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Same results as the custom op, by a loop over blocks of classes."""
    wrong = (allowed.excluded < -1) | (allowed.excluded >= shard.num_classes)
    rule = "excluded must be class ids in [-1, num_classes); got"
    is_there = Check(
        ~tf.reduce_any(wrong), lambda: [rule, tf.boolean_mask(allowed.excluded, wrong)[:1]]
    )
    with after([shard.check(blocks.num_classes), is_there]):
        rows = shard.row_of(tf.identity(allowed.excluded), blocks.num_classes)
    of_rows = allowed._replace(excluded=rows)
    logsumexp, scores, ids = best_by_blocks(blocks, k, of_rows)
    batch = blocks.hidden.shape[0]
    ids = tf.where(ids < 0, ids, shard.class_of(ids))
    return logsumexp, tf.ensure_shape(scores, [batch, k]), tf.ensure_shape(ids, [batch, k])
