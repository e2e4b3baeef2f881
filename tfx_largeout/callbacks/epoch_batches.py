# SPDX-License-Identifier: Apache-2.0
"""EpochBatches: data for `fit` that depend on the epoch, and can begin at any batch of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.dataset_shard import shard

MakeEpoch = Callable[[int], tf.data.Dataset]


class EpochBatches(tf.data.Dataset):
    """A dataset with the batches of `make_epoch(epoch)`, for the epoch set by `begin`.

    With several workers, its batches are this worker's parts, as in `distribute.shard`.

    Keras's `fit` creates an iterator at the start of each epoch, and another one at its end, which
    it never reads. Reading that one, or any other iterator, raises an error. Arguments and errors
    are as in `Checkpoint.data`.
    """

    def __init__(self, make_epoch: MakeEpoch) -> None:
        self._make_epoch = make_epoch
        first = _checked(make_epoch(0))
        self._whole, self.num_batches = first.element_spec, int(first.cardinality())
        self._spec = shard(first).element_spec
        self._due: tf.data.Dataset | None = None
        self._iterator: Iterator[Any] | None = None
        refusing = tf.data.Dataset.from_generator(_refuse, output_signature=self._spec)
        self._refusing = refusing.apply(tf.data.experimental.assert_cardinality(self.num_batches))
        super().__init__(tf.data.experimental.to_variant(self._refusing))

    @property
    def element_spec(self) -> Any:
        return self._spec

    @property
    def is_due(self) -> bool:
        """Whether an epoch has begun whose batches were not requested yet."""
        return self._due is not None

    def is_of_epoch(self, iterator: Any) -> bool:
        """Returns whether an iterator is the one over the present epoch."""
        return iterator is self._iterator

    def begin(self, epoch: int, batch: int = 0) -> None:
        """Sets the next iterator to the batches of an epoch, from a given one on."""
        self._due = shard(self._epoch(epoch).skip(batch))

    def fingerprint(self) -> str:
        """Returns a digest of the first batch of the first epoch, of all workers together."""
        values = {_digest_of_first(self._epoch(0)) for _ in range(2)}
        if len(values) > 1:
            raise ValueError(
                "data must be a function of the epoch; got other batches for epoch 0 the second "
                "time. Shuffle within the function, with a seed that depends on the epoch: "
                "lambda epoch: dataset.shuffle(buffer_size, seed=epoch).batch(size)"
            )
        return values.pop()

    def __iter__(self) -> Iterator[Any]:
        due, self._due = self._due, None
        if due is None:
            return iter(self._refusing)
        self._iterator = iter(due)
        return self._iterator

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._refusing]

    def _epoch(self, epoch: int) -> tf.data.Dataset:
        dataset = _checked(self._make_epoch(epoch))
        found = dataset.element_spec, int(dataset.cardinality())
        if found != (self._whole, self.num_batches):
            raise ValueError(
                "data must have the same kind and number of batches in each epoch; got "
                f"{self.num_batches} of {self._whole} in epoch 0, and {found[1]} of {found[0]} in "
                f"epoch {epoch}"
            )
        return dataset


def _checked(dataset: Any) -> tf.data.Dataset:
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"data must be a tf.data.Dataset for each epoch; got {dataset!r}")
    cardinality = int(dataset.cardinality())
    if cardinality < 1:
        kind = {tf.data.INFINITE_CARDINALITY: "infinitely many", 0: "none"}
        raise ValueError(
            "data must have a known number of batches in an epoch: see take() and "
            f"tf.data.experimental.assert_cardinality; got {kind.get(cardinality, 'unknown')}"
        )
    if dataset.options().deterministic is False:
        raise ValueError("data must come in a determined order; got options().deterministic=False")
    return dataset


def _digest_of_first(dataset: tf.data.Dataset) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for batch in dataset.take(1):
        for part in tf.nest.flatten(batch, expand_composites=True):
            digest.update(tf.io.serialize_tensor(part).numpy())
    return digest.hexdigest()


def _refuse() -> Iterator[Any]:
    raise RuntimeError(
        "what Checkpoint.data returns must go to keras.Model.fit as it is, without class_weight "
        "and steps_per_epoch, and nowhere else; all that is done to the data belongs into the "
        "function of the epoch"
    )
    yield
