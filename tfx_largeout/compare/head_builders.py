# SPDX-License-Identifier: Apache-2.0
"""HeadBuilder: creates heads from their options, each with the loss that trains it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tfx_largeout import heads, indexes, initializers, losses, samplers
from tfx_largeout.compare.head_options import HASH_FAMILIES, ROW_OPTIMIZERS

_TF_SAMPLERS = ("log_uniform", "uniform", "unigram")


@dataclasses.dataclass(frozen=True)
class HeadBuilder:
    """The data and options for a head; its methods create a head and a loss, or their parts."""

    num_classes: int
    label_counts: Any  # [C]: how many training examples have each class
    seed: int
    options: dict[str, Any]

    def full_softmax(self) -> Any:
        head = heads.DenseHead(self.num_classes, bias_initializer=self._bias(), name="head")
        return head, losses.SoftmaxCrossentropy()

    def exact_softmax(self) -> Any:
        options = self.options
        head = heads.ExactSoftmaxHead(
            self.num_classes,
            self._row_optimizer(),
            options["num_selected"] if options["backward"] == "selected" else None,
            options["backward"],
            options["products"],
            bias_initializer=self._bias(),
            seed=self.seed,
            name="head",
        )
        return head, losses.SoftmaxCrossentropy()

    def tf_sampled_softmax(self) -> Any:
        """`tf.nn.sampled_softmax_loss`."""
        return self._candidate_sampling(heads.TFSampledSoftmaxHead)

    def tf_nce(self) -> Any:
        """`tf.nn.nce_loss`."""
        return self._candidate_sampling(heads.TFNCEHead)

    def _candidate_sampling(self, kind: type[heads.Head]) -> Any:
        sampler, sampler_options = self.options["sampler"], {}
        if sampler not in _TF_SAMPLERS:
            raise ValueError(f"sampler must be one of {', '.join(_TF_SAMPLERS)}; got {sampler!r}")
        if sampler == "unigram":
            sampler = "fixed_unigram"
            sampler_options = {"unigrams": self._counts().astype(float).tolist()}
        head = kind(
            self.num_classes,
            name="head",
            bias_initializer=self._bias(),
            num_sampled=self.options["num_sampled"],
            num_true=self.options["num_true"],
            sampler=sampler,
            sampler_options=sampler_options,
            seed=self.seed,
        )
        return head, losses.TFCandidateSamplingLoss()

    def factored_zloss(self) -> Any:
        return self._factored(), losses.ZLoss(a=0.1, b=20.0)

    def factored_taylor(self) -> Any:
        return self._factored(), losses.TaylorSoftmax()

    def factored_spherical(self) -> Any:
        # With positive logits, logits and probabilities have the same order.
        head = self._factored(use_bias=True, bias_initializer="ones")
        return head, losses.SphericalSoftmax(epsilon=0.1)

    def _factored(self, **arguments: Any) -> Any:
        rate = self.options["head_learning_rate"]
        return heads.FactoredHead(self.num_classes, rate, name="head", **arguments)

    def sampled(self, loss: Any) -> Any:
        """A `SampledHead` for an estimator."""
        return self._sampled_head(self._sampler()), loss

    def indexed(self, kind: Callable[..., samplers.Sampler]) -> Any:
        """A `SampledHead` with candidates from an index, and random ones."""
        others, own = self._sampler(), self._own()
        sampler = kind(self.options["num_found"], others, per_example=own)
        return self._sampled_head(sampler, self._index()), losses.ComplementarySum()

    def midx(self) -> Any:
        num_sampled, num_words = self.options["num_sampled"], self.options["num_words"]
        sampler = samplers.MIDX(num_sampled, num_words, per_example=self._own())
        return self._sampled_head(sampler), losses.ComplementarySum()

    def exact_top_k(self) -> Any:
        sampler = samplers.ExactTopK(self.options["top_k"])
        return self._sampled_head(sampler), losses.ActiveSetSoftmax()

    def lsh_active_set(self) -> Any:
        """A `SampledHead` with only candidates from an LSH index."""
        sampler = samplers.LSHEmbedding(self.options["num_found"], per_example=self._own())
        return self._sampled_head(sampler, self._index()), losses.ActiveSetSoftmax()

    def wta_top_k(self) -> Any:
        """A `SampledHead` with the best classes that WTA hashing finds."""
        sampler = samplers.WTATopK(self.options["top_k"], self.options["num_found"])
        return self._sampled_head(sampler, self._index()), losses.ActiveSetSoftmax()

    def hierarchical(self, tree: str) -> Any:
        optimizer, counts = self._row_optimizer(), self._counts().tolist()
        head = heads.HierarchicalSoftmaxHead(
            self.num_classes, optimizer, tree=tree, counts=counts, name="head"
        )
        return head, losses.NegativeLogLikelihood()

    def _sampled_head(self, sampler: samplers.Sampler, index: Any = None) -> heads.SampledHead:
        return heads.SampledHead(
            self.num_classes,
            sampler,
            self._row_optimizer(),
            bias_initializer=self._bias(),
            index=index,
            seed=self.seed,
            name="head",
        )

    def _bias(self) -> Any:
        by_name: dict[str, Callable[[], Any]] = {
            "zeros": lambda: "zeros",
            "uniform": lambda: initializers.LogFrequency(np.ones_like(self.label_counts)),
            "log_frequency": lambda: initializers.LogFrequency(self._counts()),
        }
        return by_name[self.options["bias"]]()

    def _counts(self) -> Any:
        # A class without training examples must sometimes be drawn: it is never a label.
        return np.maximum(self.label_counts, 1)

    def _row_optimizer(self) -> Any:
        name = self.options["head_optimizer"]
        if name not in ROW_OPTIMIZERS:
            choices = ", ".join(ROW_OPTIMIZERS)
            raise ValueError(f"head_optimizer must be one of {choices}; got {name!r}")
        return ROW_OPTIMIZERS[name](self.options["head_learning_rate"])

    def _own(self) -> bool:
        """Whether each example has separate candidates."""
        return bool(self.options["candidates"] == "per-example")

    def _sampler(self) -> samplers.Sampler:
        counts, size, own = self._counts(), self.options["num_sampled"], self._own()
        by_name: dict[str, Callable[[], samplers.Sampler]] = {
            "bernoulli": lambda: samplers.Bernoulli(counts, size, per_example=own),
            "log_uniform": lambda: samplers.LogUniform(size, per_example=own),
            "uniform": lambda: samplers.Uniform(size, per_example=own),
            "unigram": lambda: samplers.Unigram(counts, size, per_example=own),
        }
        return by_name[self.options["sampler"]]()

    def _index(self) -> indexes.HashIndex:
        name = self.options["hash_family"]
        return indexes.HashIndex(
            HASH_FAMILIES[name](),
            hashes_per_table=self.options["hashes_per_table"],
            num_tables=self.options["num_tables"],
            similarity="inner_product" if name == "inner_product" else "angle",
            seed=self.seed,
        )
