# SPDX-License-Identifier: Apache-2.0
"""The sampler: chooses the candidate classes that a training step looks at."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.labels import Labels


class Candidates(NamedTuple):
    """Candidate classes, shared by a batch or an example's own, and how likely they were.

    The *expected count* E of a class is how often it is expected among the candidates: its
    probability to be one of them where each class can be drawn once.

    Attributes:
        ids: `[S]` or `[N, S]` int64, class ids; -1 where there is none.
        log_expected: Like `ids`, float32, log E; 0 where there is none.
        true_log_expected: `[N, K]` float32, log E of the labels; 0 at padding.
    """

    ids: tf.Tensor
    log_expected: tf.Tensor
    true_log_expected: tf.Tensor

    @classmethod
    def certain(cls, ids: tf.Tensor, labels: Labels) -> Candidates:
        """Returns candidates that were not drawn: E = 1, for the labels too."""
        return cls(ids, tf.zeros(tf.shape(ids)), tf.zeros(tf.shape(labels.ids)))


class Sampler:
    """Chooses candidate classes. Carries configuration; `build` makes its tables for C classes.

    A sampler keeps no state from step to step, beside an index that follows the weights: the same
    seed gives the same candidates, in a graph and eagerly, so that a restored run goes on as it
    would have.

    To add a sampler, write `draw`, and `tabulate` if it needs tables or has rules about C; register
    it with Keras and write `get_config` to save it with a model.
    """

    num_classes: int | None = None
    index: Any = None

    def build(self, num_classes: int) -> None:
        """Checks the number of classes against the arguments, and makes tables.

        A second call with the same number does nothing.

        Args:
            num_classes: C, at least 2.

        Raises:
            ValueError: C does not fit the arguments, or the sampler was built for another C.
        """
        num_classes = integer_argument("num_classes", num_classes, at_least=2)
        if self.num_classes == num_classes:
            return
        if self.num_classes is not None:
            raise ValueError(
                f"num_classes must be {self.num_classes}, for which this {type(self).__name__} "
                f"was built; got {num_classes}. Give each head a sampler of its own."
            )
        with tf.init_scope():  # tables outlive the graph in which a model is built
            self.tabulate(num_classes)
        self.num_classes = num_classes

    def sample(self, hidden: tf.Tensor, labels: Labels, seed: Any) -> Candidates:
        """Chooses candidates for a batch. No gradient flows through the choice.

        Args:
            hidden: `[N, D]`, what the candidates are for.
            labels: N examples, normal form, checked.
            seed: `[2]` int32 or int64: equal seeds give equal candidates.

        Raises:
            ValueError: The sampler was not built, or the seed has another shape or dtype.
        """
        if self.num_classes is None:
            raise ValueError(
                f"{type(self).__name__}.build(num_classes) must be called before sample; "
                "got a sampler that was not built"
            )
        seed = tf.convert_to_tensor(seed)
        if not seed.shape.is_compatible_with([2]) or seed.dtype not in (tf.int32, tf.int64):
            raise ValueError(
                f"seed must have shape [2] and dtype int32 or int64; got shape {seed.shape} and "
                f"dtype {seed.dtype.name}"
            )
        return self.draw(tf.stop_gradient(hidden), labels, seed)

    def tabulate(self, num_classes: int) -> None:
        """Checks C and makes what `draw` needs: constants, outside of any graph."""

    def follow(self, kernel: Any, bias: Any) -> None:
        """Gets the weights of the head that has this sampler, when the head is built.

        A sampler whose candidates depend on them has an attribute `index`, a layer, which the head
        saves.

        Args:
            kernel: W `[C, D]`, a variable.
            bias: b `[C]`, a variable, or None.

        Raises:
            ValueError: The sampler follows another head.
        """

    def after_update(self, labels: Labels, candidates: tf.Tensor) -> None:
        """Called when a step has changed the rows of labels and candidates.

        Args:
            labels: N examples.
            candidates: `[S]` or `[N, S]` int64; -1 where there is none.
        """

    def draw(self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor) -> Candidates:
        """Chooses candidates. Arguments as `sample`, checked."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for JSON."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Sampler:
        """Makes a sampler from what `get_config` returned."""
        return cls(**config)


def where_labels(labels: Labels, values: tf.Tensor) -> tf.Tensor:
    """Returns `values` `[N, K]` as float32, with 0 at padding."""
    return tf.where(labels.mask, tf.cast(values, tf.float32), 0)
