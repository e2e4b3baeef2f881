# SPDX-License-Identifier: Apache-2.0
"""The partition function over all classes, and a few entries of the softmax that stand for it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import choice_argument, integer_argument
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.checks import check_dtypes, require_shape
from tfx_largeout.ops.devices import is_on_gpu
from tfx_largeout.ops.exact.products import PRODUCTS
from tfx_largeout.ops.exact.softmax_selection_composed import softmax_selection_composed
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES

_WHOLE = ClassShard()


class SoftmaxSelection(NamedTuple):
    """What `softmax_selection` returns; floats are float32, or float64 for a float64 kernel."""

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
        """Returns what is kept by the log Z of all classes, of what a shard has kept by its own.

        The Z of some classes is less than that of all, so that with it too many entries are kept,
        and each that is to stay is among them. The choice is that of one pass over all classes, but
        for rounding.

        Cost: O(B S').

        Args:
            log_z: `[B]`, at least `logsumexp`: log Z of all classes.
            epsilon: As `least_weight` gives it.
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
    """Returns S as an int.

    Raises:
        ValueError: It is no integer in [at_least, C].
    """
    num_selected = integer_argument("num_selected", num_selected, at_least)
    if num_selected > num_classes:
        raise ValueError(
            f"num_selected must be at most num_classes={num_classes}; got {num_selected}"
        )
    return num_selected


def least_weight(num_selected: int, num_classes: int) -> float:
    """Returns the least weight of an entry that is kept: 1 / S, or 0 where all C are kept."""
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
    implementation: str = "auto",
) -> SoftmaxSelection:
    """Computes log Z exactly, and keeps entries of the softmax that estimate it without bias.

    With p_ic = exp(o_ic) / Z_i, o = W h + b, each entry (i, c) is kept with probability
    min(1, S p_ic), independently of others, and gets the weight max(p_ic, 1 / S): its expectation
    is p_ic. At most S entries of an example are expected. With S = C all are kept, with p_ic
    itself, unless that underflows. Labels are left out: their p_ic is known from the target logits.

    The choice is a function of the seed, the place i in the batch, c and p_ic: neither of the
    number of threads nor, but for the rounding of p_ic, of the implementation.

    Of a shard of the classes, log Z and p_ic are those among its own. `SoftmaxSelection.thinned`
    leaves what is kept by the log Z of all.

    Cost: O(B C D) time, W read once; memory O(B (D + T S log C)) for T threads at most.

    Args:
        kernel: W, `[C, D]`: `tf.Variable` or `keras.Variable`, float32, bfloat16 or float64
            (composed only). It is read in place and never copied.
        bias: b, `[C]`, likewise, of the same dtype; or None.
        hidden: h, `[B, D]`, finite; float32, or float64 beside a float64 kernel.
        labels: `[B, K]` int64, padded with -1.
        num_selected: S, in [0, C]. With 0 none is kept.
        seed: `[2]` int64.
        shard: Which classes of a layer the rows of the kernel are, in numbers. Labels, ids, C and
            S are those of the layer.
        products: `"float32"`; or `"bfloat16"`: W and h are rounded to bfloat16 (relative error
            2^-8 at most), a block at a time, and their products, which are exact then, summed in
            float32. That is faster on a processor with AVX512-BF16, and slower on others.
        implementation: As `row_update`.

    Returns:
        A `SoftmaxSelection`. No gradient is defined.

    Raises:
        ValueError: A static shape is wrong, `num_selected` is out of range, or `products` unknown.
        TypeError: A dtype is wrong.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: h is not finite, a label is out of range, or shapes
            disagree.
    """
    no_candidates = tf.zeros([0], tf.int64)
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, no_candidates)
    if shard.num_classes is None:
        shard = shard._replace(num_classes=arguments.num_classes)
    num_selected = num_selected_argument(num_selected, shard.num_classes, at_least=0)
    choice_argument("products", products, PRODUCTS)
    check_dtypes(tf.int64, seed=seed)
    require_shape("seed", "[2]", seed, [2])
    module = op_module(
        implementation, "tfx_softmax_selection", "kernel", arguments.kernel, OP_DTYPES, OP_DTYPES
    )
    if module is None:
        epsilon = least_weight(num_selected, shard.num_classes)
        composed = softmax_selection_composed(
            arguments, num_selected, epsilon, seed, shard, products
        )
        return SoftmaxSelection(*composed)
    num_classes = shard.num_classes
    shard = shard.tensors(arguments.num_classes)
    if is_on_gpu(arguments.kernel):  # whose kernel can't refuse what tensors hold
        arguments = arguments.checked((), num_classes)
    return SoftmaxSelection(
        *module.tfx_softmax_selection(
            kernel=arguments.kernel.handle,
            bias=[] if arguments.bias is None else [arguments.bias.handle],
            hidden=arguments.hidden,
            labels=arguments.labels,
            seed=seed,
            first_class=shard.first,
            class_stride=shard.stride,
            num_classes=shard.num_classes,
            num_selected=num_selected,
            products=products,
            dtype=arguments.kernel.dtype,
        )
    )
