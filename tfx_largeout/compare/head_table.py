# SPDX-License-Identifier: Apache-2.0
"""The table of heads that can be compared. A new head adds a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from tfx_largeout import heads, indexes, losses, samplers
from tfx_largeout.compare.head_options import ROW_OPTIMIZERS


class HeadRow(NamedTuple):
    """A head, the loss it trains with, and what serves it best.

    Attributes:
        name: On the command line and in the results.
        description: One line.
        options: Its options (see `head_options.py`) and their defaults: the best that was found
            for the shipped data in 60 seconds (docs/compare.md has what was tried).
        single_optimizer: Options that replace some of these where Keras has no `MultiOptimizer`
            (before 3.15, which needs Python 3.11), so that all weights share one optimizer.
        build: `build(num_classes, label_counts, seed, options)` returns head and loss.
            `label_counts` `[C]`: the number of training examples of each class.
    """

    name: str
    description: str
    options: dict[str, Any]
    single_optimizer: dict[str, Any]
    build: Callable[..., tuple[Any, Any]]

    @property
    def default_options(self) -> dict[str, Any]:
        """The default options with the Keras that is installed."""
        if hasattr(keras.optimizers, "MultiOptimizer"):
            return dict(self.options)
        return {**self.options, **self.single_optimizer}


# The options of the model's optimizer, where the head updates itself.
_TRUNK = {
    "optimizer": "adam",
    "learning_rate": 2e-3,
    "trunk_optimizer": "same",
    "trunk_learning_rate": 2e-3,
}


def _full_softmax(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    return heads.DenseHead(num_classes, name="head"), losses.SoftmaxCrossentropy()


def _tf_sampled_softmax(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    arguments = _candidate_sampling(label_counts, seed, options)
    return heads.TFSampledSoftmaxHead(num_classes, **arguments), losses.TFCandidateSamplingLoss()


def _tf_nce(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    arguments = _candidate_sampling(label_counts, seed, options)
    # NCE learns normalized scores: from a bias of 0 it first has to push every class down.
    bias = keras.initializers.Constant(-math.log(num_classes))
    head = heads.TFNCEHead(num_classes, bias_initializer=bias, **arguments)
    return head, losses.TFCandidateSamplingLoss()


def _factored_zloss(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    return _factored(num_classes, options), losses.ZLoss(a=0.1, b=20.0)


def _factored_taylor(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    return _factored(num_classes, options), losses.TaylorSoftmax()


def _factored_spherical(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    # From positive logits, the order of the logits is that of the probabilities.
    head = _factored(num_classes, options, use_bias=True, bias_initializer="ones")
    return head, losses.SphericalSoftmax(epsilon=0.1)


def _factored(num_classes: int, options: Any, **arguments: Any) -> Any:
    rate = options["head_learning_rate"]
    return heads.FactoredHead(num_classes, rate, name="head", **arguments)


def _factored_options(head_learning_rate: float) -> dict[str, Any]:
    return {
        **_TRUNK,
        "head_learning_rate": head_learning_rate,
    }


def _row_options(head_learning_rate: float) -> dict[str, Any]:
    return {
        **_TRUNK,
        "head_optimizer": "row_adam",
        "head_learning_rate": head_learning_rate,
    }


def _row_optimizer(options: Any) -> Any:
    return ROW_OPTIMIZERS[options["head_optimizer"]](options["head_learning_rate"])


def _sampled(loss: Callable[[], Any], bias_of: Callable[[int], float] | None = None) -> Any:
    """Returns the function that builds a SampledHead for an estimator.

    Args:
        loss: Makes the loss.
        bias_of: Bias to start from, a function of C. Default: 0.
    """

    def build(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
        bias = keras.initializers.Constant(0.0 if bias_of is None else bias_of(num_classes))
        sampler = _sampler(label_counts, options)
        return _sampled_head(num_classes, sampler, seed, options, bias_initializer=bias), loss()

    return build


def _sampled_head(
    num_classes: int, sampler: samplers.Sampler, seed: int, options: Any, **arguments: Any
) -> Any:
    optimizer = _row_optimizer(options)
    return heads.SampledHead(num_classes, sampler, optimizer, seed=seed, name="head", **arguments)


def _sampler(label_counts: Any, options: Any) -> samplers.Sampler:
    # A class without training examples must be drawn at times: it is in no target.
    counts = [float(max(count, 1)) for count in label_counts]
    size = options["num_sampled"]
    by_name: dict[str, Callable[[], samplers.Sampler]] = {
        "bernoulli": lambda: samplers.Bernoulli(counts, size),
        "log_uniform": lambda: samplers.LogUniform(size),
        "uniform": lambda: samplers.Uniform(size),
        "unigram": lambda: samplers.Unigram(counts, size),
    }
    return by_name[options["sampler"]]()


def _sampled_options(head_learning_rate: float, sampler: str = "log_uniform") -> dict[str, Any]:
    return {
        **_row_options(head_learning_rate),
        "num_sampled": 1000,
        "sampler": sampler,
    }


def _index(seed: int, options: Any) -> indexes.HashIndex:
    name = options["hash_family"]
    by_name: dict[str, Callable[[], indexes.HashFamily]] = {
        "dwta": indexes.DWTAHash,
        "inner_product": indexes.SimHash,
        "simhash": indexes.SimHash,
        "wta": indexes.WTAHash,
    }
    return indexes.HashIndex(
        by_name[name](),
        hashes_per_table=options["hashes_per_table"],
        num_tables=options["num_tables"],
        similarity="inner_product" if name == "inner_product" else "angle",
        seed=seed,
    )


def _indexed(sampler: Callable[..., samplers.Sampler]) -> Callable[..., tuple[Any, Any]]:
    """Returns the function that builds a SampledHead with candidates from an index, and others."""

    def build(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
        found, per_example = options["num_found"], options["candidates"] == "own"
        choice, index = (
            sampler(found, _sampler(label_counts, options), per_example=per_example),
            _index(seed, options),
        )
        head = _sampled_head(num_classes, choice, seed, options, index=index)
        return head, losses.ComplementarySum()

    return build


def _indexed_options(head_learning_rate: float) -> dict[str, Any]:
    return {
        **_row_options(head_learning_rate),
        "num_found": 500,
        "num_sampled": 500,
        "sampler": "log_uniform",
        "candidates": "shared",
        "hash_family": "inner_product",
        "hashes_per_table": 6,
        "num_tables": 50,
    }


def _exact_top_k(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    return _active_set(num_classes, samplers.ExactTopK(options["top_k"]), None, seed, options)


def _lsh_active_set(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    per_example = options["candidates"] == "own"
    sampler = samplers.LSHEmbedding(options["num_found"], per_example=per_example)
    return _active_set(num_classes, sampler, _index(seed, options), seed, options)


def _wta_top_k(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    sampler = samplers.WTATopK(options["top_k"], options["num_found"])
    return _active_set(num_classes, sampler, _index(seed, options), seed, options)


def _active_set(
    num_classes: int,
    sampler: samplers.Sampler,
    index: indexes.HashIndex | None,
    seed: int,
    options: Any,
) -> Any:
    head = _sampled_head(num_classes, sampler, seed, options, index=index)
    return head, losses.ActiveSetSoftmax()


def _hierarchical(tree: str) -> Callable[..., tuple[Any, Any]]:
    """Returns the function that builds a HierarchicalSoftmaxHead with a kind of tree."""

    def build(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
        optimizer = _row_optimizer(options)
        counts = [max(int(count), 1) for count in label_counts]
        head = heads.HierarchicalSoftmaxHead(
            num_classes, optimizer, tree=tree, counts=counts, name="head"
        )
        return head, losses.NegativeLogLikelihood()

    return build


def _candidate_sampling(label_counts: Any, seed: int, options: Any) -> dict[str, Any]:
    """Returns the arguments that TensorFlow's two built-ins share."""
    sampler, sampler_options = options["sampler"], {}
    if sampler == "unigram":
        # A class without training examples must be drawn at times: it is in no target.
        sampler = "fixed_unigram"
        sampler_options = {"unigrams": [float(max(count, 1)) for count in label_counts]}
    return {
        "name": "head",
        "num_sampled": options["num_sampled"],
        "num_true": options["num_true"],
        "sampler": sampler,
        "sampler_options": sampler_options,
        "seed": seed,
    }


_CANDIDATE_SAMPLING = {
    "optimizer": "sgd",
    "learning_rate": 50.0,
    "trunk_optimizer": "adam",
    "trunk_learning_rate": 2e-3,
    "num_sampled": 1000,
    "num_true": 5,
    "sampler": "log_uniform",
}
_CANDIDATE_SAMPLING_SINGLE = {"learning_rate": 10.0, "trunk_optimizer": "same"}

HEAD_TABLE = (
    HeadRow(
        "full_softmax",
        "DenseHead: the exact softmax over all classes",
        {
            "optimizer": "adam",
            "learning_rate": 0.02,
            "trunk_optimizer": "same",
            "trunk_learning_rate": 0.02,
        },
        {},
        _full_softmax,
    ),
    HeadRow(
        "tf_sampled_softmax",
        "tf.nn.sampled_softmax_loss, as TensorFlow ships it",
        _CANDIDATE_SAMPLING,
        _CANDIDATE_SAMPLING_SINGLE,
        _tf_sampled_softmax,
    ),
    HeadRow(
        "tf_nce",
        "tf.nn.nce_loss, as TensorFlow ships it",
        _CANDIDATE_SAMPLING,
        _CANDIDATE_SAMPLING_SINGLE,
        _tf_nce,
    ),
    HeadRow(
        "factored_zloss",
        "FactoredHead: the Z-loss over all classes, exactly",
        _factored_options(3.0),
        {},
        _factored_zloss,
    ),
    HeadRow(
        "factored_taylor",
        "FactoredHead: the Taylor softmax over all classes, exactly",
        _factored_options(3000.0),
        {},
        _factored_taylor,
    ),
    HeadRow(
        "factored_spherical",
        "FactoredHead: the spherical softmax over all classes, exactly",
        _factored_options(1000.0),
        {},
        _factored_spherical,
    ),
    HeadRow(
        "complementary_sum",
        "SampledHead: labels summed exactly, other classes by importance sampling",
        _sampled_options(0.005),
        {},
        _sampled(losses.ComplementarySum),
    ),
    HeadRow(
        "complementary_bernoulli",
        "SampledHead: labels summed exactly, other classes by Bernoulli sampling",
        _sampled_options(0.005, "bernoulli"),
        {},
        _sampled(losses.ComplementarySum),
    ),
    HeadRow(
        "sampled_softmax",
        "SampledHead: log Q corrected softmax over labels and candidates",
        _sampled_options(0.005),
        {},
        _sampled(losses.SampledSoftmax),
    ),
    HeadRow(
        "ranking",
        "SampledHead: labels before candidates, with the margin log(C - 1)",
        _sampled_options(0.005),
        {},
        _sampled(losses.Ranking),
    ),
    HeadRow(
        "noise_contrastive",
        "SampledHead: noise-contrastive estimation",
        _sampled_options(0.005),
        {},
        _sampled(losses.NoiseContrastive, lambda classes: -math.log(classes)),
    ),
    HeadRow(
        "blackout",
        "SampledHead: BlackOut, discriminating labels from candidates",
        _sampled_options(0.005),
        {},
        _sampled(losses.BlackOut),
    ),
    HeadRow(
        "sampled_logistic",
        "SampledHead: logistic loss of labels and candidates, one against all",
        _sampled_options(0.005),
        {},
        _sampled(losses.SampledLogistic, lambda classes: -math.log(classes)),
    ),
    HeadRow(
        "lsh_embedding",
        "SampledHead: candidates whose weights share hash buckets with the hidden activations",
        _indexed_options(0.005),
        {},
        _indexed(samplers.LSHEmbedding),
    ),
    HeadRow(
        "lsh_label",
        "SampledHead: candidates whose weights share hash buckets with those of the labels",
        _indexed_options(0.005),
        {},
        _indexed(samplers.LSHLabel),
    ),
    HeadRow(
        "lsh_active_set",
        "SampledHead: softmax over labels and what shares hash buckets, without other classes",
        {
            **_row_options(0.005),
            "num_found": 1000,
            "candidates": "own",
            "hash_family": "dwta",
            "hashes_per_table": 4,
            "num_tables": 50,
        },
        {},
        _lsh_active_set,
    ),
    HeadRow(
        "wta_top_k",
        "SampledHead: softmax over labels and the best classes among those that an index finds",
        {
            **_row_options(0.005),
            "top_k": 100,
            "num_found": 1000,
            "hash_family": "wta",
            "hashes_per_table": 3,
            "num_tables": 200,
        },
        {},
        _wta_top_k,
    ),
    HeadRow(
        "exact_top_k",
        "SampledHead: softmax over labels and the best classes among all",
        {**_row_options(0.005), "top_k": 100},
        {},
        _exact_top_k,
    ),
    HeadRow(
        "hierarchical_two_level",
        "HierarchicalSoftmaxHead: first the cluster, then the class",
        _row_options(0.02),
        {},
        _hierarchical("two_level"),
    ),
    HeadRow(
        "hierarchical_huffman",
        "HierarchicalSoftmaxHead: a binary decision at each node of a Huffman tree",
        _row_options(0.02),
        {},
        _hierarchical("huffman"),
    ),
)

# What runs unless `--heads` says otherwise. A minute of each head must fit into eight.
DEFAULT_HEADS = ("full_softmax", "tf_sampled_softmax", "tf_nce", "complementary_sum")


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
