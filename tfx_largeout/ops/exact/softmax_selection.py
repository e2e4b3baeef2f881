# SPDX-License-Identifier: Apache-2.0
"""The partition function over all classes, and a few entries that estimate the softmax."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, choice_argument, integer_argument
from tfx_largeout.devices import is_on_gpu
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.memory import StepSize
from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.checks import check_dtypes, require_shape
from tfx_largeout.ops.exact.logit_blocks import PRODUCTS, LogitBlocks
from tfx_largeout.ops.exact.streamed_logits import streamed_logits_composed
from tfx_largeout.ops.rows.stochastic_rounding import mixed, shifted, split_mix
from tfx_largeout.ops.rows.variable_rows import ids_between
from tfx_largeout.ops.sorted_search import padded_rows

_WHOLE = ClassShard()


class SoftmaxSelection(NamedTuple):
    """The result of `softmax_selection`; floats are float32, or float64 for a float64 kernel."""

    logsumexp: tf.Tensor
    """`[B]`: log Z = log sum_c exp(o_c), over all classes whose rows are here."""
    target_logits: tf.Tensor
    """`[B, K]`: o at the labels; 0 at padding, and where a label has no row here."""
    ids: tf.Tensor
    """`[B, S']` int64: the classes that are kept, rising, labels left out; -1 at padding."""
    probabilities: tf.Tensor
    """`[B, S']`: their weights max(p, 1 / S); 0 at padding."""
    logits: tf.Tensor
    """`[B, S']`: their o; 0 at padding."""
    keys: tf.Tensor
    """`[B, S']`: o - log u, u in (0, 1] being the random number of the entry; 0 at padding."""

    def thinned(self, log_z: tf.Tensor, epsilon: float) -> SoftmaxSelection:
        """Drops entries that a shard keeps by its log Z, but log Z of all classes does not keep.

        Z of some classes is less than Z of all, so a shard keeps too many entries, including all
        that should stay. Except for rounding, the result equals one pass over all classes.

        Cost: O(B S'). `log_z` `[B]` is at least `logsumexp`; `epsilon` is the result of
            `least_weight`.
        """
        of_example = log_z[:, tf.newaxis]
        log_epsilon = math.log(epsilon) if epsilon else -math.inf
        stays = (self.ids >= 0) & (self.keys > of_example + log_epsilon)
        weights = tf.maximum(tf.exp(self.logits - of_example), epsilon)
        return self._replace(
            logsumexp=log_z,
            ids=tf.where(stays, self.ids, tf.constant(-1, tf.int64)),
            probabilities=tf.where(stays, weights, 0),
        )


def num_selected_argument(num_selected: int, num_classes: int, at_least: int = 1) -> int:
    """Returns S as an int; raises ValueError if it is not an integer in [at_least, C]."""
    num_selected = integer_argument("num_selected", num_selected, at_least)
    at_most_classes("num_selected", num_selected, num_classes)
    return num_selected


def least_weight(num_selected: int, num_classes: int) -> float:
    """Returns the smallest weight of a kept entry: 1 / S, or 0 if all C are kept."""
    return 1 / num_selected if 0 < num_selected < num_classes else 0.0


def softmax_selection(
    kernel: Any,
    bias: Any,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    num_selected: int,
    seed: tf.Tensor,
    *,
    shard: ClassShard = _WHOLE,
    products: str = "float32",
    without_labels: bool = False,
    implementation: str = "auto",
) -> SoftmaxSelection:
    """Computes log Z exactly, and keeps a random selection of softmax entries, without bias.

    With p_ic = exp(o_ic) / Z_i, o = W h + b, each entry (i, c) is kept with probability min(1, S
    p_ic), independently of others, with weight max(p_ic, 1 / S): its expectation is p_ic. The
    expected number of entries per example is at most S. With S = C all are kept, with weight p_ic,
    unless it underflows. Labels are left out: their p_ic is known from the target logits.

    The choice depends on the seed, the position i in the batch, c and p_ic, but not on the number
    of threads, nor (except for the rounding of p_ic) on the implementation.

    For a shard of the classes, log Z and p_ic are over its classes. `SoftmaxSelection.thinned` then
    drops the excess.

    Cost: O(B C D) time, W read once; memory O(B (D + T S log C)) for T threads at most.

    Args:
        kernel: W, `[C, D]`: this one and the next three as in `CandidateArguments`.
        bias: b, `[C]`, or None.
        hidden: h, `[B, D]`.
        labels: `[B, K]`.
        num_selected: S, in [0, C]. With 0 no entry is kept.
        seed: `[2]` int64.
        shard: The classes of a layer to which the rows of the kernel belong. Labels, ids, C and S
            refer to the layer.
        products: `"float32"`; or `"bfloat16"`: W and h are rounded to bfloat16 (relative error 2^-8
            at most), one block at a time, and their products, which are then exact, are summed in
            float32. This is faster on a processor with AVX512-BF16, and slower on others.
        without_labels: True: log Z and all p_ic are over the classes that are not labels of the
            example. This can't be computed from log Z and target logits: if a label's p rounds to
            1, the others are lost. Always composed.
        implementation: See `ops`, which has the errors, too.
    """
    no_candidates = tf.zeros([0], tf.int64)
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, no_candidates)
    if shard.num_classes is None:
        shard = shard._replace(num_classes=arguments.num_classes)
    num_selected = num_selected_argument(num_selected, shard.num_classes, at_least=0)
    choice_argument("products", products, PRODUCTS)
    check_dtypes(tf.int64, seed=seed)
    require_shape("seed", "[2]", seed, [2])
    module = arguments.op_module(implementation, "tfx_softmax_selection")
    if module is None or without_labels:
        rest = num_selected, seed, shard, products, without_labels
        return SoftmaxSelection(*_composed(arguments, *rest))
    num_classes = shard.num_classes
    shard = shard.tensors(arguments.num_classes)
    if is_on_gpu(arguments.kernel):  # the GPU kernel can't raise for values in tensors
        arguments = arguments.checked((), num_classes)
    return SoftmaxSelection(
        *module.tfx_softmax_selection(
            **arguments.inputs,
            seed=seed,
            first_class=shard.first,
            class_stride=shard.stride,
            num_classes=shard.num_classes,
            num_selected=num_selected,
            products=products,
        )
    )


def selection_workspace(width: int, step: StepSize, num_selected: int, num_classes: int) -> int:
    """Returns the bytes that a call of the custom op needs, as in `core/logit_keeper.cc`.

    Threads keep entries by their partial Z, about B S log C of 16 bytes.
    """
    entries = int(num_selected * step.examples * math.log(num_classes))
    return 4 * step.examples * (width + 2 * 256) + 16 * max(entries, step.threads * 2**14)


def _composed(
    arguments: CandidateArguments,
    num_selected: int,
    seed: tf.Tensor,
    shard: ClassShard,
    products: str,
    without_labels: bool,
) -> tuple[tf.Tensor, ...]:
    """Same results as the custom op of `softmax_selection`, by two passes over blocks of classes.

    The first computes the partition function; the second computes the logits again and keeps
    entries.
    """
    epsilon = least_weight(num_selected, shard.num_classes)
    num_classes, num_rows = shard.num_classes, arguments.num_classes
    shard = shard.tensors(num_rows)
    arguments = arguments.checked([shard.check(num_rows)], num_classes)
    hidden, labels = arguments.hidden, arguments.labels
    blocks = LogitBlocks(hidden, arguments.kernel, arguments.bias, products)
    if without_labels:
        rows = shard.row_of(labels, num_rows)
        named = arguments._replace(labels=rows, candidates=tf.zeros([0], tf.int64))
        targets = candidate_logits(*named).true_logits
        blocks = blocks._replace(left_out=rows)
        log_z = streamed_logits_composed(blocks, labels[:, :0], 0, None, shard)[0]
    else:
        log_z, targets, *_ = streamed_logits_composed(blocks, labels, 0, None, shard)
    batch = tf.shape(hidden, tf.int64)[0]
    if num_selected == 0:
        empty = tf.stack([batch, 0])
        return log_z, targets, tf.zeros(empty, tf.int64), *[tf.zeros(empty, hidden.dtype)] * 3
    keys = _example_keys(seed, batch)

    def visit(start, end, logits, found):  # type: ignore[no-untyped-def]
        places, values = found
        ids = shard.class_of(ids_between(start, end))
        p = tf.exp(logits - log_z[:, tf.newaxis])
        u = tf.cast(_uniform(keys, ids), p.dtype)
        is_label = tf.reduce_any(labels[:, :, tf.newaxis] == ids, axis=1)
        kept = tf.where((p > u * epsilon) & ~is_label)
        of_block = tf.stack([kept[:, 0], tf.gather(ids, kept[:, 1])], axis=1)
        p, logits, u = (tf.gather_nd(x, kept) for x in (p, logits, u))
        more = tf.stack([tf.maximum(p, epsilon), logits, logits - tf.math.log(u)], axis=1)
        return tf.concat([places, of_block], axis=0), tf.concat([values, more], axis=0)

    places, values = blocks.fold(
        visit,
        (tf.zeros([0, 2], tf.int64), tf.zeros([0, 3], hidden.dtype)),
        (tf.TensorShape([None, 2]), tf.TensorShape([None, 3])),
    )
    # Blocks are in order, so a stable sort by example keeps the classes rising.
    order = tf.argsort(places[:, 0], stable=True)
    places, values = tf.gather(places, order), tf.gather(values, order)
    entries = [(places[:, 1], -1), *((x, 0) for x in tf.unstack(values, axis=1))]
    matrices = padded_rows(places[:, 0], batch, *entries)
    return log_z, targets, *(tf.ensure_shape(x, [hidden.shape[0], None]) for x in matrices)


# The random numbers of the custom op: a hash of the seed, the example and the class.


def _example_keys(seed: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    """Returns a random number of 32 bits for each example, `[B]` uint32."""
    seed = tf.cast(seed, tf.uint64)
    key = split_mix(split_mix(seed[0]) ^ seed[1])
    examples = tf.cast(tf.range(batch), tf.uint64)
    return tf.cast(shifted(split_mix(key ^ examples), 32), tf.uint32)


def _uniform(keys: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Returns random numbers in (0, 1] for each example and class, `[B, n]` float32."""
    of_class = tf.cast(ids, tf.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        of_class = mixed(of_class, shift) * tf.constant(factor, tf.uint32)
    of_class = mixed(of_class, 16)
    x = (keys[:, tf.newaxis] ^ of_class) * tf.constant(0x9E3779B1, tf.uint32)
    x = mixed(x, 15) * tf.constant(0x85EBCA77, tf.uint32)
    return (tf.cast(shifted(x, 1), tf.float32) + 0.5) * 2.0**-31
