# SPDX-License-Identifier: Apache-2.0
"""The table of heads that can be compared. A new head adds a row; custom heads get one, too."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from tfx_largeout import heads, losses, samplers
from tfx_largeout.compare.head_builders import HeadBuilder
from tfx_largeout.compare.head_options import SAME, TUNED_CLASSES, at_most
from tfx_largeout.compare.settings import TrainingSettings
from tfx_largeout.heads.tf_candidate_sampling import TFCandidateSamplingHead


class HeadRow(NamedTuple):
    """A head, its loss, and its best settings.

    `options` (see `head_options.py`) have the best settings found for the shipped data
    (docs/guides/compare.md lists the trials); `make` returns head and loss.
    """

    name: str
    description: str
    options: dict[str, Any]
    make: Callable[[HeadBuilder], tuple[Any, Any]]
    in_proportion: tuple[str, ...] = ()  # options whose default is proportional to C
    # Whether the head has a separate optimizer; otherwise the model's optimizer has two parts
    # (`keras.optimizers.MultiOptimizer`), or trains everything.
    updates_itself: bool = True

    @property
    def default_options(self) -> dict[str, Any]:
        """The default options for the installed Keras."""
        return {**self.options, "head_optimizer": SAME} if self._lacks_one else dict(self.options)

    @property
    def _lacks_one(self) -> bool:
        return not self.updates_itself and not hasattr(keras.optimizers, "MultiOptimizer")

    def check(self, options: dict[str, Any], training: TrainingSettings) -> None:
        """Raises the errors of the head's arguments early, before training.

        Checks that need the number of classes or the workers are left to the head.

        Raises:
            ValueError: In one sentence: the option, the rule and the value.
        """
        if self._lacks_one and options["head_optimizer"] != SAME:
            raise ValueError(
                f"head_optimizer must be {SAME} with a Keras older than 3.15, which has no "
                f"MultiOptimizer; got {options['head_optimizer']!r} with Keras {keras.__version__}"
            )
        options = at_most(options, TUNED_CLASSES)
        counts = np.ones(TUNED_CLASSES)
        head, _ = self.make(HeadBuilder(len(counts), counts, training.seed, options))
        index = getattr(head, "index", None)
        if index is not None:
            index.check_shape(head.num_classes, training.hidden)


_TRUNK: dict[str, Any] = {
    "trunk_optimizer": "row_rmsprop",
    "trunk_learning_rate": 4e-3,
    "neighbors": "no",
}


def _row(head_learning_rate: float, optimizer: str = "row_adam", **others: Any) -> dict[str, Any]:
    rate = {"head_optimizer": optimizer, "head_learning_rate": head_learning_rate}
    return {**_TRUNK, **rate, **others}


def _sampled(sampler: str = "log_uniform", bias: str = "log_frequency") -> dict[str, Any]:
    """Returns the options of a `SampledHead` with a static sampler."""
    return _row(0.03, bias=bias, num_sampled=1500, sampler=sampler, candidates="shared")


def _candidate_sampling(optimizer: str, rate: float, trunk_rate: float) -> dict[str, Any]:
    """Returns the options of TensorFlow's two built-ins."""
    return _row(
        rate,
        optimizer,
        trunk_learning_rate=trunk_rate,
        bias="log_frequency",
        num_sampled=4000,
        num_true=5,
        sampler="log_uniform",
    )


_INDEXED = _row(
    0.03,
    bias="log_frequency",
    num_found=1000,
    num_sampled=1000,
    sampler="log_uniform",
    candidates="shared",
    hash_family="inner_product",
    hashes_per_table=6,
    num_tables=50,
)

HEAD_TABLE = (
    HeadRow(
        "full_softmax",
        "DenseHead: the exact softmax over all classes",
        _row(0.02, "fused_adam", bias="log_frequency"),
        HeadBuilder.full_softmax,
        updates_itself=False,
    ),
    HeadRow(
        "exact_softmax",
        "ExactSoftmaxHead: the exact softmax, and an unbiased gradient of few rows",
        _row(0.02, bias="log_frequency", num_selected=256, backward="selected", products="float32"),
        HeadBuilder.exact_softmax,
    ),
    HeadRow(
        "tf_sampled_softmax",
        "tf.nn.sampled_softmax_loss, with the best of Keras's SGD, Adagrad and Adam on its weights",
        _candidate_sampling("sgd", 200.0, 0.016),
        HeadBuilder.tf_sampled_softmax,
        updates_itself=False,
    ),
    HeadRow(
        "tf_sampled_softmax_row_adam",
        "tf.nn.sampled_softmax_loss, with this package's RowAdam on its weights",
        _candidate_sampling("row_adam", 0.015, 0.008),
        HeadBuilder.tf_sampled_softmax,
        updates_itself=False,
    ),
    HeadRow(
        "tf_nce",
        "tf.nn.nce_loss, with the best of Keras's SGD, Adagrad and Adam on its weights",
        _candidate_sampling("sgd", 200.0, 0.016),
        HeadBuilder.tf_nce,
        updates_itself=False,
    ),
    HeadRow(
        "tf_nce_row_adam",
        "tf.nn.nce_loss, with this package's RowAdam on its weights",
        _candidate_sampling("row_adam", 0.015, 0.008),
        HeadBuilder.tf_nce,
        updates_itself=False,
    ),
    HeadRow(
        "factored_zloss",
        "FactoredHead: the Z-loss over all classes, exactly",
        {**_TRUNK, "head_learning_rate": 3.0},
        HeadBuilder.factored_zloss,
    ),
    HeadRow(
        "factored_taylor",
        "FactoredHead: the Taylor softmax over all classes, exactly",
        {**_TRUNK, "head_learning_rate": 3000.0},
        HeadBuilder.factored_taylor,
        in_proportion=("head_learning_rate",),
    ),
    HeadRow(
        "factored_spherical",
        "FactoredHead: the spherical softmax over all classes, exactly",
        {**_TRUNK, "head_learning_rate": 1000.0},
        HeadBuilder.factored_spherical,
        in_proportion=("head_learning_rate",),
    ),
    HeadRow(
        "complementary_sum",
        "SampledHead: labels summed exactly, other classes by importance sampling",
        {**_sampled(), "neighbors": "yes"},
        lambda builder: builder.sampled(losses.ComplementarySum()),
    ),
    HeadRow(
        "complementary_bernoulli",
        "SampledHead: labels summed exactly, other classes by Bernoulli sampling",
        _sampled("bernoulli"),
        lambda builder: builder.sampled(losses.ComplementarySum()),
    ),
    HeadRow(
        "sampled_softmax",
        "SampledHead: log Q corrected softmax over labels and candidates",
        _sampled(),
        lambda builder: builder.sampled(losses.SampledSoftmax()),
    ),
    HeadRow(
        "ranking",
        "SampledHead: labels before candidates, with the margin log(C - 1)",
        _sampled(),
        lambda builder: builder.sampled(losses.Ranking()),
    ),
    HeadRow(
        "noise_contrastive",
        "SampledHead: noise-contrastive estimation",
        _sampled(bias="uniform"),
        lambda builder: builder.sampled(losses.NoiseContrastive()),
    ),
    HeadRow(
        "blackout",
        "SampledHead: BlackOut, discriminating labels from candidates",
        _sampled(),
        lambda builder: builder.sampled(losses.BlackOut()),
    ),
    HeadRow(
        "sampled_logistic",
        "SampledHead: logistic loss of labels and candidates, one against all",
        _sampled(bias="uniform"),
        lambda builder: builder.sampled(losses.SampledLogistic()),
    ),
    HeadRow(
        "midx",
        "SampledHead: candidates from a softmax over coded rows of the weights",
        _row(0.03, bias="log_frequency", num_sampled=100, num_words=64, candidates="per-example"),
        HeadBuilder.midx,
    ),
    HeadRow(
        "lsh_embedding",
        "SampledHead: candidates whose weights share hash buckets with the hidden activations",
        _INDEXED,
        lambda builder: builder.indexed(samplers.LSHEmbedding),
    ),
    HeadRow(
        "lsh_label",
        "SampledHead: candidates whose weights share hash buckets with those of the labels",
        _INDEXED,
        lambda builder: builder.indexed(samplers.LSHLabel),
    ),
    HeadRow(
        "lsh_active_set",
        "SampledHead: softmax over labels and what shares hash buckets, without other classes",
        _row(
            0.03,
            bias="log_frequency",
            num_found=1000,
            candidates="per-example",
            hash_family="dwta",
            hashes_per_table=4,
            num_tables=50,
        ),
        HeadBuilder.lsh_active_set,
    ),
    HeadRow(
        "wta_top_k",
        "SampledHead: softmax over labels and the best classes among those that an index finds",
        _row(
            0.03,
            bias="log_frequency",
            top_k=100,
            num_found=1000,
            hash_family="wta",
            hashes_per_table=3,
            num_tables=200,
        ),
        HeadBuilder.wta_top_k,
    ),
    HeadRow(
        "exact_top_k",
        "SampledHead: softmax over labels and the best classes among all",
        _row(0.03, bias="log_frequency", top_k=100),
        HeadBuilder.exact_top_k,
    ),
    HeadRow(
        "hierarchical_two_level",
        "HierarchicalSoftmaxHead: first the cluster, then the class",
        _row(0.02),
        lambda builder: builder.hierarchical("two_level"),
    ),
    HeadRow(
        "hierarchical_huffman",
        "HierarchicalSoftmaxHead: a binary decision at each node of a Huffman tree",
        _row(0.02),
        lambda builder: builder.hierarchical("huffman"),
    ),
)

# The heads without `--heads`: this package's first, then peers.
DEFAULT_HEADS = (
    "complementary_sum",
    "tf_sampled_softmax_row_adam",
    "tf_sampled_softmax",
    "full_softmax",
)


_BY_NAME = {row.name: row for row in HEAD_TABLE}
# The usual losses: the first entry whose class a head is an instance of.
_LOSSES = (
    (TFCandidateSamplingHead, losses.TFCandidateSamplingLoss),
    (heads.HierarchicalSoftmaxHead, losses.NegativeLogLikelihood),
    (heads.FactoredHead, losses.ZLoss),
    (heads.SampledHead, losses.ComplementarySum),
    (heads.ExactSoftmaxHead, losses.SoftmaxCrossentropy),
    (heads.DenseHead, losses.SoftmaxCrossentropy),
)


def head_row(name: str, function: str = "") -> HeadRow:
    """Returns the row of a head; `function` is `package.module:function` for a custom head.

    Raises:
        ValueError: The head or the function does not exist.
    """
    if not function:
        if name not in _BY_NAME:
            raise ValueError(f"must be one of {', '.join(_BY_NAME)}; got {name!r}")
        return _BY_NAME[name]
    own = load_function(function)

    def make(builder: HeadBuilder) -> tuple[Any, Any]:
        made = own(builder.num_classes, builder.label_counts, builder.seed)
        return head_and_loss(function, made)

    return HeadRow(name, function, {**_TRUNK, "head_learning_rate": 0.03}, make)


def load_function(text: str) -> Callable[..., Any]:
    """Returns the function `package.module:function`, also from the current folder.

    Raises:
        ValueError: The function does not exist; the message is one sentence.
    """
    module, _, name = text.rpartition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"must be a name, or package.module:function; got {text!r}")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"must name a module that can be imported; got {text!r} ({reason})"
        ) from None
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:  # at the end, for later imports of the function
            sys.path.append(folder)
    if not hasattr(found, name):
        raise ValueError(f"must name a function of the module; got {text!r}, where no {name} is")
    function = getattr(found, name)
    if not callable(function):
        raise ValueError(f"must name a function; got {text!r}, which is {function!r}")
    return function


def head_and_loss(name: str, made: Any) -> tuple[Any, Any]:
    """Returns head and loss from the result of the function `name`: both, or only a head.

    Raises:
        TypeError: The result has another type.
    """
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], heads.Head):
        return made
    if not isinstance(made, heads.Head):
        raise TypeError(f"{name!r} must return (head, loss), or a head; got {made!r}")
    for kind, loss in _LOSSES:
        if isinstance(made, kind):
            return made, loss()
    raise TypeError(
        f"{name!r} must return (head, loss) where the head has no usual loss; got a "
        f"{type(made).__name__} alone"
    )
