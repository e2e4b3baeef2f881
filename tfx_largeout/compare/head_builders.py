# SPDX-License-Identifier: Apache-2.0
"""How the heads of the comparison are made from their options, with the loss that trains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfx_largeout import heads, indexes, initializers, losses, samplers
from tfx_largeout.compare.head_options import ROW_OPTIMIZERS

TRUNK: dict[str, Any] = {
    "trunk_optimizer": "row_rmsprop",
    "trunk_learning_rate": 4e-3,
    "neighbors": "no",
}


def full_softmax(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes the full softmax."""
    bias = _bias(label_counts, options)
    head = heads.DenseHead(num_classes, bias_initializer=bias, name="head")
    return head, losses.SoftmaxCrossentropy()


def _bias(label_counts: Any, options: Any) -> Any:
    """Returns the initializer of the bias that the options name."""
    by_name: dict[str, Callable[[], Any]] = {
        "zeros": lambda: "zeros",
        "uniform": lambda: initializers.LogFrequency(np.ones_like(label_counts)),
        "log_frequency": lambda: initializers.LogFrequency(_counts(label_counts)),
    }
    return by_name[options["bias"]]()


def _counts(label_counts: Any) -> Any:
    # A class without training examples must be drawn at times: it is in no target.
    return np.maximum(label_counts, 1)


def exact_softmax(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes the full softmax with a gradient of selected or of all classes."""
    head = heads.ExactSoftmaxHead(
        num_classes,
        _row_optimizer(options),
        options["num_selected"] if options["backward"] == "selected" else None,
        options["backward"],
        options["products"],
        bias_initializer=_bias(label_counts, options),
        seed=seed,
        name="head",
    )
    return head, losses.SoftmaxCrossentropy()


def tf_sampled_softmax(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes `tf.nn.sampled_softmax_loss`."""
    arguments = _candidate_sampling(label_counts, seed, options)
    return heads.TFSampledSoftmaxHead(num_classes, **arguments), losses.TFCandidateSamplingLoss()


def tf_nce(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes `tf.nn.nce_loss`."""
    arguments = _candidate_sampling(label_counts, seed, options)
    head = heads.TFNCEHead(num_classes, **arguments)
    return head, losses.TFCandidateSamplingLoss()


def factored_zloss(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes a `FactoredHead` with the Z-loss."""
    return _factored(num_classes, options), losses.ZLoss(a=0.1, b=20.0)


def factored_taylor(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes a `FactoredHead` with the Taylor softmax."""
    return _factored(num_classes, options), losses.TaylorSoftmax()


def factored_spherical(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes a `FactoredHead` with the spherical softmax."""
    # From positive logits, the order of the logits is that of the probabilities.
    head = _factored(num_classes, options, use_bias=True, bias_initializer="ones")
    return head, losses.SphericalSoftmax(epsilon=0.1)


def _factored(num_classes: int, options: Any, **arguments: Any) -> Any:
    rate = options["head_learning_rate"]
    return heads.FactoredHead(num_classes, rate, name="head", **arguments)


def factored_options(head_learning_rate: float) -> dict[str, Any]:
    """Returns the options of a `FactoredHead`."""
    return {**TRUNK, "head_learning_rate": head_learning_rate}


def row_options(head_learning_rate: float) -> dict[str, Any]:
    """Returns the options of a head with a row optimizer."""
    return {
        **TRUNK,
        "head_optimizer": "row_adam",
        "head_learning_rate": head_learning_rate,
    }


def _row_optimizer(options: Any) -> Any:
    name = options["head_optimizer"]
    if name not in ROW_OPTIMIZERS:
        choices = ", ".join(ROW_OPTIMIZERS)
        raise ValueError(f"head_optimizer must be one of {choices}; got {name!r}")
    return ROW_OPTIMIZERS[name](options["head_learning_rate"])


def sampled(loss: Callable[[], Any]) -> Callable[..., tuple[Any, Any]]:
    """Returns the function that builds a SampledHead for an estimator."""

    def build(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
        sampler = _sampler(label_counts, options)
        return _sampled_head(num_classes, sampler, label_counts, seed, options), loss()

    return build


def _sampled_head(
    num_classes: int,
    sampler: samplers.Sampler,
    label_counts: Any,
    seed: int,
    options: Any,
    index: indexes.HashIndex | None = None,
) -> Any:
    return heads.SampledHead(
        num_classes,
        sampler,
        _row_optimizer(options),
        bias_initializer=_bias(label_counts, options),
        index=index,
        seed=seed,
        name="head",
    )


def _sampler(label_counts: Any, options: Any) -> samplers.Sampler:
    counts, size, own = _counts(label_counts), options["num_sampled"], _own(options)
    by_name: dict[str, Callable[[], samplers.Sampler]] = {
        "bernoulli": lambda: samplers.Bernoulli(counts, size, per_example=own),
        "log_uniform": lambda: samplers.LogUniform(size, per_example=own),
        "uniform": lambda: samplers.Uniform(size, per_example=own),
        "unigram": lambda: samplers.Unigram(counts, size, per_example=own),
    }
    return by_name[options["sampler"]]()


def _own(options: Any) -> bool:
    return bool(options["candidates"] == "own")


def sampled_options(
    head_learning_rate: float, sampler: str = "log_uniform", bias: str = "log_frequency"
) -> dict[str, Any]:
    """Returns the options of a `SampledHead` with a static sampler."""
    return {
        **row_options(head_learning_rate),
        "bias": bias,
        "num_sampled": 1500,
        "sampler": sampler,
        "candidates": "shared",
    }


def _index(seed: int, options: Any) -> indexes.HashIndex:
    name = options["hash_family"]
    by_name: dict[str, Callable[[], Any]] = {
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


def indexed(sampler: Callable[..., samplers.Sampler]) -> Callable[..., tuple[Any, Any]]:
    """Returns the function that builds a SampledHead with candidates from an index, and others."""

    def build(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
        drawn = _sampler(label_counts, options)
        choice = sampler(options["num_found"], drawn, per_example=_own(options))
        index = _index(seed, options)
        head = _sampled_head(num_classes, choice, label_counts, seed, options, index)
        return head, losses.ComplementarySum()

    return build


def indexed_options(head_learning_rate: float) -> dict[str, Any]:
    """Returns the options of a `SampledHead` with an index."""
    return {
        **row_options(head_learning_rate),
        "bias": "log_frequency",
        "num_found": 1000,
        "num_sampled": 1000,
        "sampler": "log_uniform",
        "candidates": "shared",
        "hash_family": "inner_product",
        "hashes_per_table": 6,
        "num_tables": 50,
    }


def midx(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Returns `SampledHead` with candidates from a softmax over coded rows, and its loss."""
    num_sampled, num_words = options["num_sampled"], options["num_words"]
    sampler = samplers.MIDX(num_sampled, num_words, per_example=_own(options))
    head = _sampled_head(num_classes, sampler, label_counts, seed, options)
    return head, losses.ComplementarySum()


def midx_options(head_learning_rate: float) -> dict[str, Any]:
    """Returns the options of a `SampledHead` with `MIDX`."""
    return {
        **row_options(head_learning_rate),
        "bias": "log_frequency",
        "num_sampled": 100,
        "num_words": 64,
        "candidates": "own",
    }


def exact_top_k(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes a `SampledHead` with the exact top-K softmax."""
    sampler = samplers.ExactTopK(options["top_k"])
    return _active_set(num_classes, sampler, None, label_counts, seed, options)


def lsh_active_set(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes a `SampledHead` with the classes of an LSH index alone."""
    sampler = samplers.LSHEmbedding(options["num_found"], per_example=_own(options))
    return _active_set(num_classes, sampler, _index(seed, options), label_counts, seed, options)


def wta_top_k(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
    """Makes a `SampledHead` with the best classes that WTA hashing finds."""
    sampler = samplers.WTATopK(options["top_k"], options["num_found"])
    return _active_set(num_classes, sampler, _index(seed, options), label_counts, seed, options)


def _active_set(
    num_classes: int,
    sampler: samplers.Sampler,
    index: indexes.HashIndex | None,
    label_counts: Any,
    seed: int,
    options: Any,
) -> Any:
    head = _sampled_head(num_classes, sampler, label_counts, seed, options, index)
    return head, losses.ActiveSetSoftmax()


def hierarchical(tree: str) -> Callable[..., tuple[Any, Any]]:
    """Returns the function that builds a HierarchicalSoftmaxHead with a kind of tree."""

    def build(num_classes: int, label_counts: Any, seed: int, options: Any) -> Any:
        optimizer = _row_optimizer(options)
        counts = _counts(label_counts).tolist()
        head = heads.HierarchicalSoftmaxHead(
            num_classes, optimizer, tree=tree, counts=counts, name="head"
        )
        return head, losses.NegativeLogLikelihood()

    return build


def _candidate_sampling(label_counts: Any, seed: int, options: Any) -> dict[str, Any]:
    """Returns the arguments that TensorFlow's two built-ins share."""
    sampler, sampler_options = options["sampler"], {}
    if sampler not in _TF_SAMPLERS:
        raise ValueError(f"sampler must be one of {', '.join(_TF_SAMPLERS)}; got {sampler!r}")
    if sampler == "unigram":
        sampler = "fixed_unigram"
        sampler_options = {"unigrams": _counts(label_counts).astype(float).tolist()}
    return {
        "name": "head",
        "bias_initializer": _bias(label_counts, options),
        "num_sampled": options["num_sampled"],
        "num_true": options["num_true"],
        "sampler": sampler,
        "sampler_options": sampler_options,
        "seed": seed,
    }


_TF_SAMPLERS = ("log_uniform", "uniform", "unigram")


def candidate_sampling_options(
    head_optimizer: str, head_learning_rate: float, trunk_learning_rate: float
) -> dict[str, Any]:
    """Returns the options of TensorFlow's two built-ins."""
    return {
        **TRUNK,
        "trunk_learning_rate": trunk_learning_rate,
        "head_optimizer": head_optimizer,
        "head_learning_rate": head_learning_rate,
        "bias": "log_frequency",
        "num_sampled": 4000,
        "num_true": 5,
        "sampler": "log_uniform",
    }
