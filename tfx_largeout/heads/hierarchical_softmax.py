# SPDX-License-Identifier: Apache-2.0
"""HierarchicalSoftmaxHead: probabilities of classes as products along a tree."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, flag_argument, full_name
from tfx_largeout.class_counts import check_length, class_counts, smoothed
from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.class_trees import (
    ClassTree,
    HuffmanTree,
    RowTable,
    TableGradient,
    TwoLevelTree,
    equal_clusters,
    frequency_clusters,
    huffman_code_lengths,
)
from tfx_largeout.class_trees.sweep import (
    all_log_probabilities,
    best_classes,
    sum_of_log_probabilities,
    target_ranks,
)
from tfx_largeout.heads.kept_passes import BackwardPass
from tfx_largeout.heads.row_updating import RowUpdatingHead
from tfx_largeout.labels import Labels
from tfx_largeout.memory import StepMemory, StepSize, Weight
from tfx_largeout.ops.candidates.candidate_update import update_workspace
from tfx_largeout.ops.checks import check_finite
from tfx_largeout.ops.exact.shared_gradient import CandidateGradients, named_rows
from tfx_largeout.ops.rows.row_blocks import (
    bytes_of_blocks,
    initial_values,
    initialize_by_blocks,
)
from tfx_largeout.optimizers.row_optimizer import RowOptimizer
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.saving import get_initializer, unpack_array
from tfx_largeout.statistics import (
    ExactStatistics,
    LogProbabilityStatistics,
    TopScores,
    without_gradient,
)

_TREES = ("two_level", "huffman")


class _RowsOfTables(NamedTuple):
    """Residuals of packed passes: the rows of each table, `[N, S]`."""

    rows: Sequence[tf.Tensor]


@keras.saving.register_keras_serializable(package="tfx_largeout")
class HierarchicalSoftmaxHead(RowUpdatingHead):
    """A tree over the classes gives exact, normalized probabilities without a sum over all classes.

    | tree | log p(c given h) is the sum of | cost of a label |
    |---|---|---|
    | `"two_level"` | a log-softmax over clusters, and one over the members of c's | O(sqrt(C) D) |
    | `"huffman"` | log sigmoid(+-(w_n . h + b_n)) over the nodes n on a path | O(log(C) D) |

    Its logits are log-probabilities: `softmax` leaves them as they are, and log Z is 0. Each
    step updates only the rows that it used, with a separate row optimizer.

    ```python
    head = HierarchicalSoftmaxHead(num_classes, optimizers.RowAdagrad(0.1), counts=counts)
    model.compile("adam", loss=losses.NegativeLogLikelihood())  # "adam" trains the hidden layers
    ```

    This is a different model from the softmax over W h + b, and often less accurate.

    Cost: a training step O(B K sqrt(C) D) or O(B K log(C) D); the exact loss in evaluation costs as
    much; ranks, best classes and `predict` O(B C D), in memory that does not grow with C (except
    for `predict`'s result; two levels: O(B) for each member of the largest cluster). Memory: the
    weights, the optimizer's slots, and 8 bytes per class.

    Args:
        num_classes: The number of classes C, at least 2.
        optimizer: As `SampledHead`.
        tree: `"two_level"` (default) or `"huffman"`.
        counts: `[C]`, at least 0 (if one is 0, smoothed as in `LogFrequency`): how often each class
            is a label. Frequent classes then cost less: see `frequency_clusters` and
            `huffman_code_lengths`. Default None: clusters of equal size of neighbouring ids, or a
            balanced binary tree.
        clusters: `[C]`, integers 0 to G - 1: the cluster of each class, for two levels. Default
            None.
        use_bias: Whether there is a bias. Default True.
        kernel_initializer: The initializer of each table of weights `[rows, D]`, as `DenseHead`.
        bias_initializer: The initializer of the biases. Default `"zeros"`.
        **kwargs: `model_rate`, `device`, `name`, `dtype`, `trainable`, as `SelfUpdatingHead`.

    Raises:
        TypeError: As `RowUpdatingHead`.
        ValueError: An argument is out of range; counts or clusters don't fit; as `RowUpdatingHead`.
            In `load_weights`: the weights belong to another tree, or have other shapes.
        tf.errors.InvalidArgumentError: In a training step: h or a gradient is not finite. Nothing
            is changed then.

    References:
        Goodman 2001, Classes for fast maximum entropy training. Morin, Bengio 2005, Hierarchical
        Probabilistic Neural Network Language Model. Mnih, Hinton 2009, A Scalable Hierarchical
        Distributed Language Model. Mikolov et al. 2013, Distributed Representations of Words and
        Phrases and their Compositionality.
    """

    gives: ClassVar[tuple[type, ...]] = (LogProbabilityStatistics,)

    def __init__(
        self,
        num_classes: int,
        optimizer: RowOptimizer,
        tree: str = "two_level",
        counts: Any = None,
        clusters: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, optimizer=optimizer, **kwargs)
        choice_argument("tree", tree, _TREES)
        if clusters is not None and tree != "two_level":
            raise ValueError(f"clusters must be None unless tree is 'two_level'; got tree={tree!r}")
        if clusters is not None and counts is not None:
            raise ValueError("clusters must be None where counts are given; got both")
        self.tree = tree
        self.counts = None if counts is None else smoothed(class_counts(counts))
        if self.counts is not None:
            check_length(self.counts, self.num_classes)
        self.clusters = None if clusters is None else _checked_clusters(clusters, self.num_classes)
        self.use_bias = flag_argument("use_bias", use_bias)
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.class_tree, self._digest = self._make_tree()
        self.tree_digest = self.add_state(
            "tree_digest", (), lambda shape, dtype: tf.constant(self._digest, dtype), "int64"
        )
        self.tables = {
            name: RowTable(
                self.add_state(f"{name}_kernel", (rows, self.width), self._initial_kernel),
                self.add_state(f"{name}_bias", (rows,), self._initial_bias)
                if self.use_bias
                else None,
            )
            for name, rows in self.class_tree.table_rows.items()
        }
        self.build_optimizer([weight for table in self.tables.values() for weight in table])

    def weights_of(self, width: int, workers: int = 1) -> list[Weight]:
        """As `Head`; for clusters by counts, which are not known yet, about sqrt(C)."""
        classes, dtype = self.num_classes, self.variable_dtype
        if self.tree == "huffman":
            tables = [classes - 1]
        else:
            given = self.clusters
            clusters = math.isqrt(classes - 1) + 1 if given is None else int(given.max()) + 1
            tables = [classes, clusters]
        shapes = [shape for rows in tables for shape in ((rows, width), (rows,)[: self.use_bias])]
        weights = self.with_slots([Weight(shape, dtype) for shape in shapes if shape])
        return [*weights, Weight((classes, 8), "uint8", "index")]

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """As `Head`: logits of the clusters and of one cluster's members, or of a path."""
        pairs = step.examples * step.labels
        nodes = math.isqrt(self.num_classes) + 1
        if self.tree == "huffman":
            nodes = self.num_classes.bit_length()
        size = math.isqrt(self.num_classes) + 1 if self.tree == "two_level" else 0
        workspace = update_workspace(width, step, step.labels * nodes, own=True)
        if size:
            workspace = max(workspace, update_workspace(width, step, size, own=False))
        return StepMemory(
            activations=32 * pairs * nodes + 12 * step.examples * (size + width),
            workspace=workspace,
            evaluation=2**20 * 24,
            building=bytes_of_blocks(self.weights_of(width)[0]),
        )

    def flat_logits(self, hidden: tf.Tensor, dtype: str) -> tf.Tensor:
        """Returns all log-probabilities `[N, C]`. They have no gradient."""
        wide = self._of_this_tree(hidden)
        values = all_log_probabilities(self.class_tree.sweep(self.tables, wide))
        values = tf.transpose(self.class_tree.order.by_class(values))
        values = tf.raw_ops.PreventGradient(
            input=tf.cast(values, dtype),
            message="all log-probabilities of a HierarchicalSoftmaxHead have no gradient: train it "
            "with NegativeLogLikelihood",
        )
        return tf.ensure_shape(values, [hidden.shape[0], self.num_classes])

    def forward(
        self, kind: type, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        wide = self._of_this_tree(hidden)
        values, residuals = self.class_tree.log_probabilities(self.tables, wide, labels)
        return (values,), residuals

    def backward(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
        update: bool,
    ) -> tf.Tensor:
        parts = self._table_gradients(residuals, gradients)
        # All tables are checked before the first one is changed.
        checks = [check_finite(f"gradient of {p.table} logits", p.gradient) for p in parts]
        with after(checks):
            wide = tf.identity(tf.cast(hidden, self.statistics_dtype))
        total = tf.zeros_like(wide)
        for table, rows, gradient in parts:
            with tf.control_dependencies([total]):
                total += self._update_table(table, wide, rows, gradient, update)
        return tf.cast(total, hidden.dtype)

    def pack(self, gone: BackwardPass) -> tuple[tf.Tensor, ...]:
        parts = self._table_gradients(gone.residuals, gone.gradients)
        rows = [tf.broadcast_to(part.rows, tf.shape(part.gradient)) for part in parts]
        return gone.hidden, gone.labels.ids, *rows, *(part.gradient for part in parts)

    def unpack(self, parts: Sequence[tf.Tensor]) -> BackwardPass:
        hidden, label_ids, *rest = parts
        rows, gradients = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        return BackwardPass(hidden, Labels(label_ids), _RowsOfTables(rows), tuple(gradients))

    def _table_gradients(
        self, residuals: Any, gradients: tuple[tf.Tensor, ...]
    ) -> list[TableGradient]:
        if not isinstance(residuals, _RowsOfTables):
            return self.class_tree.gradients(residuals, *gradients)
        parts = zip(self.class_tree.table_rows, residuals.rows, gradients, strict=True)
        return [TableGradient(*part) for part in parts]

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind is not ExactStatistics:
            return super().statistics(kind, hidden, labels, training)
        wide = self._of_this_tree(hidden)
        values, _ = self.class_tree.log_probabilities(self.tables, wide, labels)
        ranks = target_ranks(self.class_tree.sweep(self.tables, wide), labels.ids)
        return without_gradient(ExactStatistics(labels, values, tf.zeros_like(wide[:, 0]), ranks))

    def mean_logit(self, hidden: tf.Tensor) -> tf.Tensor:
        """As `Head`; the mean of the log-probabilities. Cost: a sweep over all classes."""
        sweep = self.class_tree.sweep(self.tables, self._of_this_tree(hidden))
        return sum_of_log_probabilities(sweep) / self.num_classes

    def top_k(
        self,
        hidden: tf.Tensor,
        k: int,
        allowed: ClassFilter | None = None,
        temperature: Any = None,
    ) -> TopScores:
        if temperature is not None:
            raise TypeError(
                "temperature must be 1 for a head whose scores are log-probabilities of a tree, "
                f"which another one would not leave of sum 1; got one for {self.name!r}"
            )
        wide = self._of_this_tree(hidden)
        sweep = self.class_tree.sweep(self.tables, wide, best_first=True)
        scores, ids = best_classes(sweep, k, allowed)
        return TopScores(scores, ids, tf.zeros_like(wide[:, 0]))

    def check_saved(self, store: Any) -> None:
        super().check_saved(store)
        places = enumerate(self.saved_weights)
        name = str(next(i for i, weight in places if weight is self.tree_digest))
        if name in store and int(np.asarray(store[name])) != self._digest:
            raise ValueError(
                f"the saved weights must belong to the tree of {full_name(self)}; got weights of "
                "another tree, one of other counts or clusters. They are left as they were; other "
                "layers and the head's optimizer, which Keras loads separately, may not be."
            )

    def _make_tree(self) -> tuple[ClassTree, int]:
        """Returns the tree and a digest of the positions of its classes."""
        counts = self.counts
        if self.tree == "huffman":
            counts = np.ones(self.num_classes, np.int8) if counts is None else counts
            lengths = huffman_code_lengths(counts)
            return HuffmanTree(lengths), _digest(lengths)
        if self.clusters is not None:
            clusters = self.clusters
        elif counts is None:
            clusters = equal_clusters(self.num_classes)
        else:
            clusters = frequency_clusters(counts)
        return TwoLevelTree(clusters), _digest(clusters)

    def _initial_kernel(self, shape: tuple[int, int], dtype: Any) -> tf.Tensor:
        return initialize_by_blocks(self.kernel_initializer, shape, dtype)

    def _initial_bias(self, shape: tuple[int], dtype: Any) -> tf.Tensor:
        return initial_values(self.bias_initializer, shape, dtype, "bias_initializer")

    def _update_table(
        self, name: str, hidden: tf.Tensor, rows: tf.Tensor, gradient: tf.Tensor, update: bool
    ) -> tf.Tensor:
        kernel, bias = self.tables[name]
        no_labels = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
        no_gradient = tf.zeros_like(no_labels, hidden.dtype)
        batch = (hidden, no_labels, named_rows(rows, gradient), no_gradient, gradient)
        return self.update_rows(kernel, bias, CandidateGradients(*batch), update)

    def _of_this_tree(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns h in the dtype of statistics; raises ValueError for weights of another tree."""
        rule = "the weights must belong to this head's tree; got weights of another tree"
        check = Check(tf.equal(self.tree_digest.value, self._digest), lambda: [rule])
        with after([check]):
            return tf.identity(tf.cast(hidden, self.statistics_dtype))


def _digest(places: np.ndarray) -> int:
    """Returns 53 bits of a digest of integers, which a float64 (an average of weights) can hold."""
    digest = hashlib.blake2b(np.asarray(places, np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 11


def _checked_clusters(clusters: Any, num_classes: int) -> np.ndarray:
    """Returns clusters as int32; raises ValueError if they don't partition the classes."""
    result = unpack_array(clusters) if isinstance(clusters, str) else np.asarray(clusters)
    if result.shape != (num_classes,):
        raise ValueError(f"clusters must have shape [C] = [{num_classes}]; got {result.shape}")
    if result.dtype.kind not in "iu":
        raise ValueError(f"clusters must be integers; got dtype {result.dtype}")
    wrong = np.flatnonzero((result < 0) | (result >= num_classes))
    if len(wrong):
        raise ValueError(
            f"clusters must be at least 0 and below the number of classes, {num_classes}; "
            f"got {result[wrong[0]]} for class {wrong[0]}"
        )
    empty = np.flatnonzero(np.bincount(result) == 0)
    if len(empty):
        raise ValueError(
            "clusters must be numbered from 0 without gaps; "
            f"got {int(result.max()) + 1} of them, of which {empty[0]} is empty"
        )
    return result.astype(np.int32)
