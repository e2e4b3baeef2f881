# SPDX-License-Identifier: Apache-2.0
"""The table of heads that can be compared. A new head adds a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from tfx_largeout import losses, samplers
from tfx_largeout.compare.head_builders import (
    TRUNK,
    candidate_sampling_options,
    exact_softmax,
    exact_top_k,
    factored_options,
    factored_spherical,
    factored_taylor,
    factored_zloss,
    full_softmax,
    hierarchical,
    indexed,
    indexed_options,
    lsh_active_set,
    midx,
    midx_options,
    row_options,
    sampled,
    sampled_options,
    tf_nce,
    tf_sampled_softmax,
    wta_top_k,
)
from tfx_largeout.compare.head_options import SAME, TUNED_CLASSES, at_most_tuned
from tfx_largeout.compare.settings import TrainingSettings


class HeadRow(NamedTuple):
    """A head, the loss it trains with, and what serves it best.

    Attributes:
        name: On the command line and in the results.
        description: One line.
        options: Its options (see `head_options.py`) and their defaults: the best that was found
            for the shipped data (docs/compare.md has what was tried).
        build: `build(num_classes, label_counts, seed, options)` returns head and loss.
            `label_counts` `[C]`: the number of training examples of each class.
        in_proportion: Options whose default is in proportion to the number of classes.
        updates_itself: Whether the head has an optimizer of its own; else the model's has two parts
            (`keras.optimizers.MultiOptimizer`), or trains all.
    """

    name: str
    description: str
    options: dict[str, Any]
    build: Callable[..., tuple[Any, Any]]
    in_proportion: tuple[str, ...] = ()
    updates_itself: bool = True

    @property
    def default_options(self) -> dict[str, Any]:
        """The default options with the Keras that is installed."""
        return {**self.options, "head_optimizer": SAME} if self._lacks_one else dict(self.options)

    @property
    def _lacks_one(self) -> bool:
        return not self.updates_itself and not hasattr(keras.optimizers, "MultiOptimizer")

    def check(self, options: dict[str, Any], training: TrainingSettings) -> None:
        """Refuses what the head would refuse when its turn to be trained has come.

        What depends on the number of classes or on workers is left to the head.

        Args:
            options: All options.
            training: What all heads have in common.

        Raises:
            ValueError: One sentence with the option, the rule and the value.
        """
        if self._lacks_one and options["head_optimizer"] != SAME:
            raise ValueError(
                f"head_optimizer must be {SAME} with a Keras older than 3.15, which has no "
                f"MultiOptimizer; got {options['head_optimizer']!r} with Keras {keras.__version__}"
            )
        counts = np.ones(TUNED_CLASSES)
        head, _ = self.build(len(counts), counts, training.seed, at_most_tuned(options))
        index = getattr(head, "index", None)
        if index is not None:
            index.check_shape(head.num_classes, training.hidden)


HEAD_TABLE = (
    HeadRow(
        "full_softmax",
        "DenseHead: the exact softmax over all classes",
        {
            **TRUNK,
            "head_optimizer": "fused_adam",
            "head_learning_rate": 0.02,
            "bias": "log_frequency",
        },
        full_softmax,
        updates_itself=False,
    ),
    HeadRow(
        "exact_softmax",
        "ExactSoftmaxHead: the exact softmax, and an unbiased gradient of few rows",
        {
            **row_options(0.02),
            "bias": "log_frequency",
            "num_selected": 256,
            "backward": "selected",
            "products": "float32",
        },
        exact_softmax,
    ),
    HeadRow(
        "tf_sampled_softmax",
        "tf.nn.sampled_softmax_loss, with the best of Keras's SGD, Adagrad and Adam on its weights",
        candidate_sampling_options("sgd", 200.0, 0.016),
        tf_sampled_softmax,
        updates_itself=False,
    ),
    HeadRow(
        "tf_sampled_softmax_row_adam",
        "tf.nn.sampled_softmax_loss, with this package's RowAdam on its weights",
        candidate_sampling_options("row_adam", 0.015, 0.008),
        tf_sampled_softmax,
        updates_itself=False,
    ),
    HeadRow(
        "tf_nce",
        "tf.nn.nce_loss, with the best of Keras's SGD, Adagrad and Adam on its weights",
        candidate_sampling_options("sgd", 200.0, 0.016),
        tf_nce,
        updates_itself=False,
    ),
    HeadRow(
        "tf_nce_row_adam",
        "tf.nn.nce_loss, with this package's RowAdam on its weights",
        candidate_sampling_options("row_adam", 0.015, 0.008),
        tf_nce,
        updates_itself=False,
    ),
    HeadRow(
        "factored_zloss",
        "FactoredHead: the Z-loss over all classes, exactly",
        factored_options(3.0),
        factored_zloss,
    ),
    HeadRow(
        "factored_taylor",
        "FactoredHead: the Taylor softmax over all classes, exactly",
        factored_options(3000.0),
        factored_taylor,
        in_proportion=("head_learning_rate",),
    ),
    HeadRow(
        "factored_spherical",
        "FactoredHead: the spherical softmax over all classes, exactly",
        factored_options(1000.0),
        factored_spherical,
        in_proportion=("head_learning_rate",),
    ),
    HeadRow(
        "complementary_sum",
        "SampledHead: labels summed exactly, other classes by importance sampling",
        {**sampled_options(0.03), "neighbors": "yes"},
        sampled(losses.ComplementarySum),
    ),
    HeadRow(
        "complementary_bernoulli",
        "SampledHead: labels summed exactly, other classes by Bernoulli sampling",
        sampled_options(0.03, "bernoulli"),
        sampled(losses.ComplementarySum),
    ),
    HeadRow(
        "sampled_softmax",
        "SampledHead: log Q corrected softmax over labels and candidates",
        sampled_options(0.03),
        sampled(losses.SampledSoftmax),
    ),
    HeadRow(
        "ranking",
        "SampledHead: labels before candidates, with the margin log(C - 1)",
        sampled_options(0.03),
        sampled(losses.Ranking),
    ),
    HeadRow(
        "noise_contrastive",
        "SampledHead: noise-contrastive estimation",
        sampled_options(0.03, bias="uniform"),
        sampled(losses.NoiseContrastive),
    ),
    HeadRow(
        "blackout",
        "SampledHead: BlackOut, discriminating labels from candidates",
        sampled_options(0.03),
        sampled(losses.BlackOut),
    ),
    HeadRow(
        "sampled_logistic",
        "SampledHead: logistic loss of labels and candidates, one against all",
        sampled_options(0.03, bias="uniform"),
        sampled(losses.SampledLogistic),
    ),
    HeadRow(
        "midx",
        "SampledHead: candidates from a softmax over coded rows of the weights",
        midx_options(0.03),
        midx,
    ),
    HeadRow(
        "lsh_embedding",
        "SampledHead: candidates whose weights share hash buckets with the hidden activations",
        indexed_options(0.03),
        indexed(samplers.LSHEmbedding),
    ),
    HeadRow(
        "lsh_label",
        "SampledHead: candidates whose weights share hash buckets with those of the labels",
        indexed_options(0.03),
        indexed(samplers.LSHLabel),
    ),
    HeadRow(
        "lsh_active_set",
        "SampledHead: softmax over labels and what shares hash buckets, without other classes",
        {
            **row_options(0.03),
            "bias": "log_frequency",
            "num_found": 1000,
            "candidates": "own",
            "hash_family": "dwta",
            "hashes_per_table": 4,
            "num_tables": 50,
        },
        lsh_active_set,
    ),
    HeadRow(
        "wta_top_k",
        "SampledHead: softmax over labels and the best classes among those that an index finds",
        {
            **row_options(0.03),
            "bias": "log_frequency",
            "top_k": 100,
            "num_found": 1000,
            "hash_family": "wta",
            "hashes_per_table": 3,
            "num_tables": 200,
        },
        wta_top_k,
    ),
    HeadRow(
        "exact_top_k",
        "SampledHead: softmax over labels and the best classes among all",
        {**row_options(0.03), "bias": "log_frequency", "top_k": 100},
        exact_top_k,
    ),
    HeadRow(
        "hierarchical_two_level",
        "HierarchicalSoftmaxHead: first the cluster, then the class",
        row_options(0.02),
        hierarchical("two_level"),
    ),
    HeadRow(
        "hierarchical_huffman",
        "HierarchicalSoftmaxHead: a binary decision at each node of a Huffman tree",
        row_options(0.02),
        hierarchical("huffman"),
    ),
)

# What runs unless `--heads` says otherwise: ours first, then what it is measured by.
DEFAULT_HEADS = (
    "complementary_sum",
    "tf_sampled_softmax_row_adam",
    "tf_sampled_softmax",
    "full_softmax",
)


def head_row(name: str) -> HeadRow:
    """Returns the row of a head.

    Raises:
        ValueError: There is no such head.
    """
    for row in HEAD_TABLE:
        if row.name == name:
            return row
    names = ", ".join(row.name for row in HEAD_TABLE)
    raise ValueError(f"must be one of {names}; got {name!r}")
