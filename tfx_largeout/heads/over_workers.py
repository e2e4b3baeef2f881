# SPDX-License-Identifier: Apache-2.0
"""What a head, and who asks it, does where several workers train a model together."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.distribute.data_parallel import DataParallel
from tfx_largeout.distribute.global_batch import GlobalBatch, gather_examples
from tfx_largeout.distribute.meeting import EVALUATE, TOP_K, TRAIN, agree
from tfx_largeout.distribute.workers import Workers, current
from tfx_largeout.example_weights import example_weights
from tfx_largeout.labels import Labels, normalize_labels

_ANY_CLASS = 2**62


def workers_of(head: Any, width: int) -> Workers:
    """Returns the workers among which a head that is built spreads its classes.

    Raises:
        RuntimeError: The head can't do that.
        ValueError: There are fewer classes than workers, or another head on another worker.
    """
    workers = current()
    if workers.alone:
        return workers
    kind, classes = type(head).__name__, head.num_classes
    if not head.spreads_classes:
        raise RuntimeError(
            f"{kind} {head.name!r} must be built in a single process, as its classes can't be "
            f"spread over workers yet; got {workers.size} workers. SampledHead can: see "
            "docs/scale_out.md."
        )
    if classes < workers.size:
        raise ValueError(
            f"num_classes must be at least the number of workers, {workers.size}; got {classes}"
        )
    facts = {
        "num_classes": classes,
        "the width of h": width,
        "seed": getattr(head, "seed", 0),
        "the configuration": [kind, head.get_config()],
    }
    agree(workers, f"head {head.name!r}", facts)
    return workers


def whole_batch(
    output: Any, y_true: Any, sample_weight: Any, mask: Any
) -> tuple[Any, Labels, tf.Tensor | None, tf.Tensor | None]:
    """Returns the output of a head for the examples of all workers, and what belongs to them.

    Args:
        output: A `HeadOutput` of this worker's examples.
        y_true: Their labels, in any form of `normalize_labels`.
        sample_weight: As `example_weights`.
        mask: As `example_weights`.

    Returns:
        A `HeadOutput` with h `[N, D]`; labels; weights `[N]` or None; mask `[N]` or None.

    Raises:
        NotImplementedError: The labels have values.
    """
    head, local = output.head, local_examples(output, y_true, sample_weight, mask)
    batch = gather_examples(
        head.workers,
        head.name,
        local.phase,
        local.step,
        tf.cast(output.flat_hidden, head.statistics_dtype),
        local.label_ids,
        local.weights,
        local.mask,
    )
    # Checked here, so that all workers refuse a label that one of them has.
    labels = normalize_labels(batch.label_ids, head.num_classes)
    whole = type(output)(head, batch.hidden, output.training)
    return whole, labels, batch.weights, batch.mask


class LocalExamples(NamedTuple):
    """What belongs to this worker's examples.

    Attributes:
        phase: As `meet`.
        step: As `meet`.
        label_ids: `[n, K]` int64, padded with -1, of any class.
        weights: `[n]`, or None.
        mask: `[n]` bool, or None.
    """

    phase: int
    step: Any
    label_ids: tf.Tensor
    weights: tf.Tensor | None
    mask: tf.Tensor | None


def local_examples(output: Any, y_true: Any, sample_weight: Any, mask: Any) -> LocalExamples:
    """Returns what belongs to the examples of this worker. Args and errors: as `whole_batch`."""
    labels = _local_labels(output, y_true)
    if sample_weight is not None:
        sample_weight = example_weights(output.hidden, sample_weight, None)
    if mask is not None:
        mask = example_weights(output.hidden, None, mask) != 0
    phase, step = (TRAIN, output.head.step_number) if output.training else (EVALUATE, 0)
    return LocalExamples(phase, step, labels.ids, sample_weight, mask)


def whole_hidden(head: Any, hidden: tf.Tensor) -> GlobalBatch:
    """Returns the examples of all workers, without labels, for the best classes of each."""
    no_labels = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
    if head.workers.alone:
        return GlobalBatch(hidden, no_labels, None, None, None)
    hidden = tf.cast(hidden, head.statistics_dtype)
    return gather_examples(head.workers, head.name, TOP_K, 0, hidden, no_labels)


def no_logits(hidden: tf.Tensor, num_classes: int, dtype: str) -> tf.Tensor:
    """Returns logits `[N, C]` of which whoever reads them gets an error.

    Nobody does in a graph, where TensorFlow leaves out what nothing reads.
    """

    def refuse(_: Any) -> Any:
        raise RuntimeError(_NO_LOGITS)

    if tf.executing_eagerly():
        refuse(hidden)
    logits = tf.numpy_function(refuse, [tf.shape(hidden)], tf.as_dtype(dtype), stateful=False)
    return tf.ensure_shape(logits, [hidden.shape[0], num_classes])


_NO_LOGITS = (
    "a head whose classes are spread over workers has no logits of all classes, and can't run "
    "eagerly; use tlo.top_k_model for predictions, losses and metrics of this package within "
    "compile, or a tf.function of your own around model and metric"
)


def check_optimizer(head: Any, model: Any) -> None:
    """Refuses a model that several workers train with an optimizer for one.

    Args:
        head: The head.
        model: The model that calls it, or None.

    Raises:
        ValueError: The optimizer of the model is no `DataParallel`.
    """
    if head.workers.alone or model is None or not model.compiled:
        return
    if not isinstance(model.optimizer, DataParallel):
        raise ValueError(
            f"the optimizer of the model of {type(head).__name__} {head.name!r} must be a "
            "tlo.distribute.DataParallel, as several workers train it and must stay alike; got "
            f"{model.optimizer!r}"
        )


def _local_labels(output: Any, y_true: Any) -> Labels:
    classes = _ANY_CLASS
    if isinstance(y_true, tf.SparseTensor) and y_true.dtype.is_floating:
        classes = output.head.num_classes
    batch_shape = tf.shape(output.hidden)[:-1]
    labels = normalize_labels(y_true, classes, batch_shape, output.ignore_class)
    if labels.values is not None:
        raise NotImplementedError(
            "labels must be class ids where several workers train a model; got sparse targets "
            "with values of their own"
        )
    return labels
