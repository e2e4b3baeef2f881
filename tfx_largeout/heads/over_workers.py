# SPDX-License-Identifier: Apache-2.0
"""What a head and its callers do if several workers train a model together."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.arguments import full_name
from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.devices import HOST
from tfx_largeout.distribute.data_parallel import DataParallel
from tfx_largeout.distribute.global_batch import GlobalBatch, gather_examples
from tfx_largeout.distribute.meeting import EVALUATE, TOP_K, TRAIN, agree
from tfx_largeout.distribute.workers import Workers, current
from tfx_largeout.example_weights import example_weights
from tfx_largeout.labels import Labels, normalize_labels, read_labels

_ANY_CLASS = 2**62


def workers_of(head: Any, width: int) -> Workers:
    """Returns the group of workers among which a head that is built spreads its classes.

    Raises:
        RuntimeError: The head can't be spread over workers.
        ValueError: There are fewer classes than workers, or workers have different heads.
    """
    workers, kind, classes = current(), type(head).__name__, head.num_classes
    if not head.spreads_classes:
        workers.refuse_several(
            f"{kind} {head.name!r} must be built in a single process, as its classes can't be "
            f"spread over workers yet; got {workers.size} workers. SampledHead can: see "
            "docs/guides/several_workers.md."
        )
    if not head.has_replicas:
        refuse_replicas_of_classes(f"{kind} {head.name!r}")
    group = workers.group
    if classes < group.size:
        raise ValueError(
            f"num_classes must be at least the number of workers, {group.size}; got {classes}"
        )
    facts = {
        "num_classes": classes,
        "the width of h": width,
        "seed": getattr(head, "seed", 0),
        "the configuration": lambda: [kind, head.get_config()],
    }
    agree(workers, f"head {head.name!r}", facts)
    return group


def refuse_replicas_of_classes(what: str) -> None:
    """Raises a RuntimeError if workers hold replicas of the classes."""
    replicas = current().replicas
    replicas.refuse_several(
        f"{what} must be built with data_replicas=1 of tlo.distribute.connect; got "
        f"data_replicas={replicas.size}. SampledHead without an index and ExactSoftmaxHead can "
        "have more: see docs/guides/several_workers.md."
    )


def seed_of_group(seed: tf.Tensor, workers: Workers) -> tf.Tensor:
    """Returns the seed for random numbers that are drawn by the place in the batch of a group."""
    replicas = workers.replicas
    folded = lambda: tf.cast(tf.random.fold_in(seed, replicas.rank), seed.dtype)  # noqa: E731
    with tf.device(HOST):
        return replicas.pick(lambda: seed, folded)()


def whole_batch(
    output: Any, y_true: Any, sample_weight: Any, mask: Any, filtered: bool
) -> tuple[Any, Labels, tf.Tensor | None, tf.Tensor | None]:
    """`HeadOutput.over_workers` for several workers."""
    head = output.head
    when, of_labels = local_examples(output, y_true, sample_weight, mask, filtered)
    hidden = tf.cast(output.flat_hidden, head.statistics_dtype)
    batch = gather_examples(head.workers, head.name, *when, hidden, *of_labels)
    labels, excluded = labels_of_all(head, batch, filtered)
    of_all = {"parts": batch.parts, "excluded_of_all": excluded}
    whole = type(output)(head, batch.hidden, output.training, **of_all)
    return whole, labels, batch.weights, batch.mask


def local_examples(
    output: Any, y_true: Any, sample_weight: Any, mask: Any, filtered: bool
) -> tuple[tuple[int, Any], tuple[tf.Tensor | None, ...]]:
    """Returns phase and step for `meet`, and the labels and weights for `gather_examples`."""
    labels = _local_labels(output, y_true)
    if sample_weight is not None:
        sample_weight = example_weights(output.hidden, sample_weight, None)
    if mask is not None:
        mask = example_weights(output.hidden, None, mask) != 0
    phase, step = (TRAIN, output.head.step_number) if output.training else (EVALUATE, 0)
    ids, values = labels.ids, labels.values
    if filtered:  # excluded classes are sent with the labels, placed above them
        excluded = output.excluded
        ids = tf.concat([ids, tf.where(excluded < 0, excluded, excluded + _ANY_CLASS)], axis=1)
        if values is not None:
            values = tf.concat([values, tf.zeros_like(excluded, values.dtype)], axis=1)
    return (phase, step), (ids, sample_weight, mask, values)


def labels_of_all(head: Any, batch: Any, filtered: bool) -> tuple[Labels, tf.Tensor | None]:
    """Splits the gathered result of `local_examples` into labels and excluded classes.

    Labels are checked here, so that all workers raise an error for a bad label of one of them.
    """
    ids, values, excluded = batch.label_ids, batch.label_values, None
    if filtered:
        is_excluded, none = ids >= _ANY_CLASS, tf.constant(-1, tf.int64)
        excluded = tf.where(is_excluded, ids - _ANY_CLASS, none)
        ids = tf.where(is_excluded, none, ids)
    return normalize_labels(ids if values is None else (ids, values), head.num_classes), excluded


def whole_hidden(
    head: Any, hidden: tf.Tensor, allowed: ClassFilter | None
) -> tuple[GlobalBatch, ClassFilter | None]:
    """Gathers the examples of all workers, without labels, to find their best classes.

    Also gathers the allowed classes, if they are given.
    """
    ids = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
    if allowed is not None:
        wanted = tf.fill(tf.shape(hidden)[:1], -1) if allowed.wanted is None else allowed.wanted
        ids = tf.concat([tf.cast(wanted, tf.int64)[:, tf.newaxis], allowed.excluded], axis=1)
    hidden = tf.cast(hidden, head.statistics_dtype)
    batch = gather_examples(head.workers, head.name, TOP_K, 0, hidden, ids)
    if allowed is None:
        return batch, None
    of_all = batch.label_ids
    wanted = None if allowed.wanted is None else tf.cast(of_all[:, 0], tf.int32)
    return batch, allowed._replace(excluded=of_all[:, 1:], wanted=wanted)


def check_optimizer(head: Any, model: Any) -> None:
    """Raises a ValueError if several workers train a model whose optimizer works on one only."""
    if model is None or not model.compiled or isinstance(model.optimizer, DataParallel):
        return
    head.workers.refuse_several(
        f"the optimizer of the model of {full_name(head)} must be a tlo.distribute.DataParallel, "
        f"as several workers train it and must stay alike; got {model.optimizer!r}",
        ValueError,
    )


def _local_labels(output: Any, y_true: Any) -> Labels:
    classes = _ANY_CLASS
    if isinstance(y_true, tf.SparseTensor) and not y_true.dtype.is_integer:
        classes = output.head.num_classes
    batch_shape = tf.shape(output.hidden)[:-1]
    return read_labels(y_true, classes, batch_shape, output.ignore_class)
