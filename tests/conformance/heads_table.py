# SPDX-License-Identifier: Apache-2.0
"""The table of heads. A new head adds a row, and must pass the whole suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from oracles import hierarchical_softmax, margins, softmax, spherical_losses

import tfx_largeout as tlo
from tfx_largeout.class_trees import equal_clusters, huffman_code_lengths
from tfx_largeout.heads.self_updating import SelfUpdatingHead


def _dense_weights(head: Any) -> tuple[Any, Any]:
    kernel, bias = head.kernel, head.bias
    return keras.ops.convert_to_numpy(kernel), (
        None if bias is None else keras.ops.convert_to_numpy(bias)
    )


def _set_dense_row(head: Any, label: int, value: float) -> None:
    head.kernel.value.scatter_nd_update([[label]], [[value]])


def _set_factored_row(head: Any, label: int, value: float) -> None:
    head.state.v.value.scatter_nd_update([[label]], [[value]])
    head.refresh()


def _table_weights(head: Any, name: str) -> list[Any]:
    return [keras.ops.convert_to_numpy(weight) for weight in head.tables[name]]


def _two_level_weights(head: Any) -> tuple[Any, ...]:
    tables = _table_weights(head, "class"), _table_weights(head, "cluster")
    return *tables[0], *tables[1], equal_clusters(head.num_classes)


def _set_two_level_row(head: Any, label: int, value: float) -> None:
    head.tables["class"].kernel.value.scatter_nd_update([[label]], [[value]])


def _huffman_weights(head: Any) -> tuple[Any, ...]:
    return *_table_weights(head, "node"), huffman_code_lengths(np.ones(head.num_classes))


def _set_huffman_row(head: Any, label: int, value: float) -> None:
    lengths = _huffman_weights(head)[-1]
    for parents, _, leaves in hierarchical_softmax.levels(lengths):
        if label in leaves:
            row = int(parents[len(parents) - len(leaves) + np.searchsorted(leaves, label)])
    head.tables["node"].kernel.value.scatter_nd_update([[row]], [[value]])


def _tied(make: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a maker of a head that is tied to an embedding, of the width of the suite's h."""

    def make_head(
        classes: int, of_width: int = 8, kernel_initializer: Any = "glorot_uniform", **kw: Any
    ) -> Any:
        dtype = {"dtype": kw["dtype"]} if "dtype" in kw else {}
        table = tlo.layers.RowEmbedding(classes, of_width, kernel_initializer, **dtype)
        return make(table, **kw)

    return make_head


class Row(NamedTuple):
    """A head with typical settings.

    Attributes:
        name: Shown in the test's name.
        make_head: `make_head(num_classes, **layer_arguments)`.
        make_loss: Its loss.
        make_optimizer: The model's optimizer.
        weights: `weights(head)` returns W and b (or None), and whatever else the oracles need.
        set_row: `set_row(head, label, value)` sets the row of a class in a W of zeros, D = 1.
        oracle: `oracle(hidden, *weights, lists of labels)` returns the loss in evaluation, `[N]`.
        weights_dtype: The dtype of W with the policies "bfloat16" and "mixed_bfloat16".
        logits: `logits(hidden, *weights)` returns all logits, `[N, C]`, by an oracle.
        is_tied: Whether `make_head` takes the width of h, `of_width`, too.
    """

    name: str
    make_head: Callable[..., Any]
    make_loss: Callable[..., Any]
    make_optimizer: Callable[[], Any]
    weights: Callable[[Any], tuple[Any, ...]] = _dense_weights
    set_row: Callable[[Any, int, float], None] = _set_dense_row
    oracle: Callable[..., np.ndarray] = softmax.cross_entropy
    weights_dtype: tuple[str, str] = ("bfloat16", "float32")
    logits: Callable[..., np.ndarray] = softmax.logits
    is_tied: bool = False


def _smoothed_loss() -> Any:
    return tlo.losses.SoftmaxCrossentropy(label_smoothing=0.1)


def _smoothed(*arguments: Any) -> np.ndarray:
    return softmax.cross_entropy(*arguments, smoothing=0.1)


_SCALE = 8.0


def _cosine_weights(head: Any) -> tuple[Any, ...]:
    return *_dense_weights(head), float(head.scale)


def _cosine_logits(hidden: Any, kernel: Any, bias: Any, scale: float) -> np.ndarray:
    return scale * softmax.logits(margins.directions(hidden), kernel, bias)


def with_bias(row: Row) -> dict[str, bool]:
    """Arguments for a head with a bias, where it can have one: cosines have none."""
    return {} if row.logits is _cosine_logits else {"use_bias": True}


def _cosine_cross_entropy(
    hidden: Any, kernel: Any, bias: Any, scale: float, labels: Any
) -> np.ndarray:
    return softmax.cross_entropy(scale * margins.directions(hidden), kernel, bias, labels)


def _set_direction(head: Any, label: int, value: float) -> None:
    _set_dense_row(head, label, np.sign(value))


def _cosine_row(name: str, make_head: Callable[..., Any], make_loss: Callable[..., Any]) -> Any:
    return Row(
        name,
        lambda classes, **kw: make_head(
            classes, **{"cosine_scale": _SCALE, "use_bias": False, **kw}
        ),
        make_loss,
        _sgd,
        weights=_cosine_weights,
        set_row=_set_direction,
        oracle=_cosine_cross_entropy,
        logits=_cosine_logits,
    )


def _sgd() -> Any:
    return keras.optimizers.SGD(0.5)


def _small_normal() -> Any:
    return keras.initializers.RandomNormal(stddev=0.1)


HEADS = [
    Row("dense", tlo.heads.DenseHead, tlo.losses.SoftmaxCrossentropy, _sgd),
    Row(
        "tf_sampled_softmax",
        lambda classes, **kw: tlo.heads.TFSampledSoftmaxHead(classes, num_sampled=20, seed=3, **kw),
        tlo.losses.TFCandidateSamplingLoss,
        _sgd,
    ),
    Row(
        "tf_nce",
        lambda classes, **kw: tlo.heads.TFNCEHead(
            classes, num_sampled=20, sampler="uniform", seed=3, **kw
        ),
        tlo.losses.TFCandidateSamplingLoss,
        lambda: keras.optimizers.SGD(2.0),
    ),
    Row(
        "factored",
        lambda classes, **kw: tlo.heads.FactoredHead(
            classes, **{"optimizer": 2.0, "kernel_initializer": _small_normal(), **kw}
        ),
        tlo.losses.TaylorSoftmax,
        _sgd,
        lambda head: head.materialize(),
        _set_factored_row,
        spherical_losses.taylor_softmax,
        ("float32", "float32"),
    ),
    Row(
        "hierarchical_two_level",
        lambda classes, **kw: tlo.heads.HierarchicalSoftmaxHead(
            classes, tlo.optimizers.RowSGD(1.0), **kw
        ),
        tlo.losses.NegativeLogLikelihood,
        _sgd,
        _two_level_weights,
        _set_two_level_row,
        hierarchical_softmax.two_level_loss,
        logits=hierarchical_softmax.two_level,
    ),
    Row(
        "hierarchical_huffman",
        lambda classes, **kw: tlo.heads.HierarchicalSoftmaxHead(
            classes, tlo.optimizers.RowSGD(1.0), tree="huffman", **kw
        ),
        tlo.losses.NegativeLogLikelihood,
        _sgd,
        _huffman_weights,
        _set_huffman_row,
        hierarchical_softmax.binary_tree_loss,
        logits=hierarchical_softmax.binary_tree,
    ),
    Row(
        "sampled",
        lambda classes, **kw: tlo.heads.SampledHead(
            classes,
            tlo.samplers.Uniform(20),
            tlo.optimizers.RowAdam(0.05),
            seed=3,
            **kw,
        ),
        tlo.losses.ComplementarySum,
        _sgd,
    ),
    Row(
        "sampled_per_example",
        lambda classes, **kw: tlo.heads.SampledHead(
            classes,
            tlo.samplers.LogUniform(15, per_example=True),
            tlo.optimizers.RowAdagrad(0.2),
            seed=3,
            **kw,
        ),
        tlo.losses.SampledSoftmax,
        _sgd,
    ),
    Row(
        "sampled_exact_softmax",
        lambda classes, **kw: tlo.heads.SampledHead(
            classes,
            tlo.samplers.ExactSoftmaxSampler(15),
            tlo.optimizers.RowAdam(0.05),
            seed=3,
            **kw,
        ),
        tlo.losses.ImportanceSampling,
        _sgd,
    ),
    Row(
        "sampled_midx",
        lambda classes, **kw: tlo.heads.SampledHead(
            classes,
            tlo.samplers.MIDX(15),
            tlo.optimizers.RowAdam(0.05),
            seed=3,
            index=tlo.indexes.InvertedMultiIndex(3, first_period=3),
            **kw,
        ),
        tlo.losses.ComplementarySum,
        _sgd,
    ),
    Row(
        "sampled_in_batch",
        lambda classes, **kw: tlo.heads.SampledHead(
            classes, tlo.samplers.InBatch(queue=1), tlo.optimizers.RowAdam(0.05), seed=3, **kw
        ),
        tlo.losses.SampledSoftmax,
        _sgd,
    ),
    Row(
        "sampled_index",
        lambda classes, **kw: tlo.heads.SampledHead(
            classes,
            tlo.samplers.LSHEmbedding(8, tlo.samplers.Uniform(10)),
            tlo.optimizers.RowAdam(0.02),
            seed=3,
            index=tlo.indexes.HashIndex(
                tlo.indexes.SimHash(), 2, 2, first_period=3, similarity="inner_product"
            ),
            **kw,
        ),
        tlo.losses.ComplementarySum,
        _sgd,
    ),
    Row(
        "tied_sampled",
        _tied(
            lambda table, **kw: tlo.heads.TiedSampledHead(
                table, tlo.samplers.Uniform(20), seed=3, **kw
            )
        ),
        tlo.losses.ComplementarySum,
        _sgd,
        is_tied=True,
    ),
    Row(
        "tied_sampled_midx",
        _tied(
            lambda table, **kw: tlo.heads.TiedSampledHead(
                table,
                tlo.samplers.MIDX(15),
                seed=3,
                index=tlo.indexes.InvertedMultiIndex(3, first_period=3),
                **kw,
            )
        ),
        tlo.losses.SampledSoftmax,
        lambda: tlo.optimizers.RowAdam(0.05),
        is_tied=True,
    ),
    Row(
        "tied_sampled_index",
        _tied(
            lambda table, **kw: tlo.heads.TiedSampledHead(
                table,
                tlo.samplers.LSHEmbedding(8, tlo.samplers.Uniform(10), per_example=True),
                seed=3,
                index=tlo.indexes.HashIndex(tlo.indexes.SimHash(), 2, 2, first_period=3),
                **kw,
            )
        ),
        tlo.losses.ComplementarySum,
        lambda: tlo.optimizers.RowAdagrad(0.2),
        is_tied=True,
    ),
    Row(
        "tied_exact_softmax",
        _tied(
            lambda table, **kw: tlo.heads.TiedExactSoftmaxHead(table, num_selected=10, seed=3, **kw)
        ),
        tlo.losses.SoftmaxCrossentropy,
        _sgd,
        is_tied=True,
    ),
    Row(
        "tied_exact_softmax_all",
        _tied(
            lambda table, **kw: tlo.heads.TiedExactSoftmaxHead(
                table, backward="all", products="bfloat16", **kw
            )
        ),
        tlo.losses.SoftmaxCrossentropy,
        lambda: tlo.optimizers.RowAdam(0.05),
        is_tied=True,
    ),
    Row(
        "tied_exact_softmax_smoothed",
        _tied(
            lambda table, **kw: tlo.heads.TiedExactSoftmaxHead(table, num_selected=10, seed=3, **kw)
        ),
        _smoothed_loss,
        lambda: tlo.optimizers.RowAdam(0.05),
        oracle=_smoothed,
        is_tied=True,
    ),
    Row(
        "exact_softmax",
        lambda classes, **kw: tlo.heads.ExactSoftmaxHead(
            classes, tlo.optimizers.RowAdam(0.05), num_selected=10, seed=3, **kw
        ),
        tlo.losses.SoftmaxCrossentropy,
        _sgd,
    ),
    Row(
        "exact_softmax_all",
        lambda classes, **kw: tlo.heads.ExactSoftmaxHead(
            classes, tlo.optimizers.RowAdam(0.05), backward="all", products="bfloat16", **kw
        ),
        tlo.losses.SoftmaxCrossentropy,
        _sgd,
    ),
    Row("dense_smoothed", tlo.heads.DenseHead, _smoothed_loss, _sgd, oracle=_smoothed),
    Row(
        "exact_softmax_smoothed",
        lambda classes, **kw: tlo.heads.ExactSoftmaxHead(
            classes, tlo.optimizers.RowAdam(0.05), num_selected=10, seed=3, **kw
        ),
        _smoothed_loss,
        _sgd,
        oracle=_smoothed,
    ),
    Row(
        "exact_softmax_all_smoothed",
        lambda classes, **kw: tlo.heads.ExactSoftmaxHead(
            classes, tlo.optimizers.RowAdam(0.05), backward="all", **kw
        ),
        _smoothed_loss,
        _sgd,
        oracle=_smoothed,
    ),
    _cosine_row(
        "dense_cosine",
        tlo.heads.DenseHead,
        lambda: tlo.losses.SoftmaxCrossentropy(cosine_margin=0.1),
    ),
    _cosine_row(
        "exact_softmax_cosine",
        lambda classes, **kw: tlo.heads.ExactSoftmaxHead(
            classes, tlo.optimizers.RowAdam(0.05), num_selected=10, seed=3, **kw
        ),
        lambda: tlo.losses.SoftmaxCrossentropy(angular_margin=0.1),
    ),
    _cosine_row(
        "sampled_cosine",
        lambda classes, **kw: tlo.heads.SampledHead(
            classes,
            tlo.samplers.Uniform(20),
            tlo.optimizers.RowAdam(0.05),
            seed=3,
            learn_scale=True,
            **kw,
        ),
        lambda: tlo.losses.ComplementarySum(cosine_margin=0.1),
    ),
]

_CLASSES = {row.name: type(row.make_head(50)) for row in HEADS}
_FIRST_OF_A_CLASS = {_CLASSES[row.name]: row.name for row in reversed(HEADS)}.values()


def class_of(row):
    """The class of a row's head."""
    return _CLASSES[row.name]


def first_of_a_class(row):
    """Whether no row before has a head of this class, whose code they repeat."""
    return row.name in _FIRST_OF_A_CLASS


def kind_of(row):
    """Who updates the head's weights: for tests of code that all heads of a kind share."""
    return "tied" if row.is_tied else issubclass(class_of(row), SelfUpdatingHead)
