# SPDX-License-Identifier: Apache-2.0
"""The table of misuses. A new head joins by its row in the conformance table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from conformance.heads_table import HEADS, Row, first_of_a_class
from misuse.case import CLASSES, EXAMPLES, WIDTH, Case

import tfx_largeout as tlo
from tfx_largeout.class_trees import equal_clusters
from tfx_largeout.heads import FactoredHead, HierarchicalSoftmaxHead, SampledHead
from tfx_largeout.heads.row_updating import RowUpdatingHead
from tfx_largeout.heads.self_updating import SelfUpdatingHead

REFUSED = tf.errors.InvalidArgumentError


def _is_a(kind: type) -> Callable[[Row], bool]:
    return lambda row: isinstance(row.make_head(CLASSES), kind)


def every(row: Row) -> bool:
    return True


def untied(row: Row) -> bool:
    """Leaves out tied heads, whose embedding raises the error."""
    return not row.is_tied


def one(row: Row) -> bool:
    """For cases that do not depend on the head."""
    return row.name == "sampled"


self_updating, row_updating = _is_a(SelfUpdatingHead), _is_a(RowUpdatingHead)
sampled, factored = _is_a(SampledHead), _is_a(FactoredHead)
tree = _is_a(HierarchicalSoftmaxHead)


class Misuse(NamedTuple):
    """A misuse, and its result.

    Attributes:
        what: A description.
        act: A function that does it.
        error: The exception.
        message: A pattern of its message.
        concerns: The affected heads.
        keeps_state: Whether weights and the head's optimizer are unchanged.
    """

    what: str
    act: Callable[[Case], Any]
    error: Any
    message: str
    concerns: Callable[[Row], bool] = every
    keeps_state: bool = True


def _labels(y: Any) -> Callable[[Case], Any]:
    """Trains with other labels."""
    return lambda case: case.fit(np.array(y))


def _argument(**arguments: Any) -> Callable[[Case], Any]:
    return lambda case: case.make_head(**arguments)


def _optimizer(make: Callable[[], Any]) -> Callable[[Case], Any]:
    """Gives the head an optimizer before it is built."""
    return lambda case: setattr(case.make_head(), "optimizer", make())


def _adam(**options: Any) -> Callable[[], Any]:
    return lambda: tlo.optimizers.RowAdam(0.01, **options)


def _sampled(**arguments: Any) -> Callable[[Case], Any]:
    defaults = {"sampler": tlo.samplers.Uniform(3), "optimizer": tlo.optimizers.RowSGD(0.1)}
    return lambda case: SampledHead(CLASSES, **{**defaults, **arguments}).build((None, WIDTH))


def _factored(**arguments: Any) -> Callable[[Case], Any]:
    return lambda case: FactoredHead(CLASSES, **{"optimizer": 0.1, **arguments})


def _tree(**arguments: Any) -> Callable[[Case], Any]:
    return lambda case: HierarchicalSoftmaxHead(CLASSES, tlo.optimizers.RowSGD(0.1), **arguments)


# Arguments

_POSITIVE = "must be a finite number above 0; got"
ARGUMENTS = [
    *(
        Misuse(f"num_classes={value!r}", _argument(num_classes=value), ValueError, message, untied)
        for value in (1, 0, -3, 2.5, "many", None, True)
        for message in ["num_classes must be an integer of at least 2; got"]
    ),
    Misuse("an argument that is none", _argument(width=3), (TypeError, ValueError), "width"),
    *(
        Misuse(
            f"cosine_scale={value!r}",
            _sampled(cosine_scale=value),
            ValueError,
            "cosine_scale must be a finite number above 0; got",
            one,
        )
        for value in (0, -2.0, float("nan"), "large")
    ),
    Misuse(
        "a bias beside cosines",
        _sampled(cosine_scale=8.0, use_bias=True),
        ValueError,
        "use_bias must be False with cosine_scale",
        one,
    ),
    Misuse(
        "a scale that is learned where there is none",
        _sampled(learn_scale=True),
        ValueError,
        "learn_scale must be False without a cosine_scale",
        one,
    ),
    Misuse(
        "cosines of a head that has none",
        _argument(cosine_scale=8.0),
        TypeError,
        "cosine_scale must be left out of .*Head, whose rows of weights",
        lambda row: factored(row) or tree(row),
    ),
    *(
        Misuse(
            f"cosine_margin={value!r}",
            lambda case, value=value: tlo.losses.ComplementarySum(cosine_margin=value),
            ValueError,
            "cosine_margin must be a finite number at least 0 and below 2; got",
            one,
        )
        for value in (-0.1, 2.0, float("nan"))
    ),
    Misuse(
        "a margin of a loss that is no softmax",
        lambda case: tlo.losses.NoiseContrastive(angular_margin=0.5),
        TypeError,
        "angular_margin must be left out of NoiseContrastive",
        one,
    ),
    Misuse(
        "a margin of logits that are no cosines",
        lambda case: case.fit_with(loss=tlo.losses.ComplementarySum(cosine_margin=0.1)),
        TypeError,
        "need a head whose logits are s cos",
        one,
    ),
    Misuse("dtype=float16", _argument(dtype="float16"), ValueError, "have float16 weights"),
    Misuse(
        "dtype=int32",
        _argument(dtype="int32"),
        ValueError,
        "dtype of .*Head .* must be a floating one; got 'int32'",
        untied,
    ),
    *(
        Misuse(
            f"model_rate={value!r}",
            _argument(model_rate=value),
            ValueError,
            "model_rate must be a finite number above 0; got .*'highest' and None are allowed",
            self_updating,
        )
        for value in (0, -1.0, float("nan"), "lowest")
    ),
    *(
        Misuse(
            f"optimizer of the head is {name}",
            _optimizer(make),
            TypeError,
            "optimizer must be a RowOptimizer; got",
            row_updating,
        )
        for name, make in {
            "None": lambda: None,
            "a name": lambda: "adam",
            "Keras's Adam": keras.optimizers.Adam,
            "a class": lambda: tlo.optimizers.RowAdam,
        }.items()
    ),
    *(
        Misuse(
            f"optimizer of the head with {option}",
            _optimizer(_adam(**{option: value})),
            ValueError,
            f"must not have {option}, which only model.compile applies; got {option}={value}",
            row_updating,
        )
        for option, value in {
            "clipnorm": 1.0,
            "clipvalue": 1.0,
            "global_clipnorm": 1.0,
            "use_ema": True,
            "gradient_accumulation_steps": 4,
            "loss_scale_factor": 64.0,
        }.items()
    ),
    *(
        Misuse(
            f"RowAdam({name}={value!r})",
            lambda case, n=name, v=value: _adam_of(n, v),
            ValueError,
            f"{name} must be a finite number",
            one,
        )
        for name, value in [
            ("learning_rate", 0),
            ("learning_rate", -1),
            ("learning_rate", float("nan")),
            ("beta_1", 1.0),
            ("beta_2", -0.1),
            ("epsilon", 0),
            ("weight_decay", -1),
            ("row_clip_norm", 0),
        ]
    ),
    *(
        Misuse(
            f"{option} of float32 weights",
            lambda case, o=option: _built_with(case, **{o: True}),
            ValueError,
            f"{option} of RowAdam .* must be False where no weights are bfloat16; got .*float32",
            one,
        )
        for option in ("stochastic_rounding", "compensation")
    ),
    *(
        Misuse(
            f"FactoredHead(optimizer={value!r})",
            _factored(optimizer=value),
            ValueError,
            f"learning_rate {_POSITIVE}",
            one,
        )
        for value in (0, -0.5, float("inf"), float("nan"))
    ),
    *(
        Misuse(
            f"FactoredHead with {name}",
            lambda case, make=make: FactoredHead(CLASSES, make()),
            TypeError,
            "must be a RowSGD without momentum and row_clip_norm",
            one,
        )
        for name, make in {
            "a name": lambda: "fast",
            "no optimizer": lambda: None,
            "RowAdam": lambda: tlo.optimizers.RowAdam(0.1),
            "momentum": lambda: tlo.optimizers.RowSGD(0.1, momentum=0.9),
            "row_clip_norm": lambda: tlo.optimizers.RowSGD(0.1, row_clip_norm=1.0),
        }.items()
    ),
    Misuse(
        "FactoredHead with unknown stabilization",
        _factored(stabilization="eager"),
        ValueError,
        "stabilization must be one of 'lazy', .*; got 'eager'",
        one,
    ),
    Misuse("sampler=None", _sampled(sampler=None), TypeError, "must be a Sampler; got None", one),
    Misuse(
        "sampler is a class",
        _sampled(sampler=tlo.samplers.Uniform),
        TypeError,
        "must be a Sampler; got",
        one,
    ),
    Misuse(
        "sampler of too many candidates",
        _sampled(sampler=tlo.samplers.Uniform(CLASSES + 1)),
        ValueError,
        "num_sampled must be at most",
        one,
    ),
    Misuse(
        "no draws from the softmax",
        lambda case: tlo.samplers.ExactSoftmaxSampler(0),
        ValueError,
        "num_sampled must be an integer of at least 1; got 0",
        one,
    ),
    Misuse(
        "more code words than classes",
        _sampled(sampler=tlo.samplers.MIDX(5, CLASSES + 1)),
        ValueError,
        f"num_words must be at most num_classes={CLASSES}; got {CLASSES + 1}",
        one,
    ),
    Misuse(
        "draws by codes from hash tables",
        _sampled(sampler=tlo.samplers.MIDX(5, 3), index=tlo.indexes.HashIndex()),
        TypeError,
        "index must be an InvertedMultiIndex for MIDX; got",
        one,
    ),
    Misuse(
        "hash tables looked for among codes",
        _sampled(sampler=tlo.samplers.LSHEmbedding(5), index=tlo.indexes.InvertedMultiIndex(3)),
        TypeError,
        "index must be a HashIndex for LSHEmbedding; got",
        one,
    ),
    Misuse(
        "counts of other classes",
        _sampled(sampler=tlo.samplers.Unigram([1, 2, 3], 2)),
        ValueError,
        "counts must have one entry for each of the 24 classes; got 3",
        one,
    ),
    Misuse(
        "more found than classes",
        _sampled(
            sampler=tlo.samplers.LSHEmbedding(CLASSES + 1),
            index=tlo.indexes.HashIndex(tlo.indexes.SimHash()),
        ),
        ValueError,
        f"num_found must be at most num_classes={CLASSES}",
        one,
    ),
    Misuse(
        "a background that depends on the weights",
        lambda case: tlo.samplers.LSHEmbedding(3, tlo.samplers.LSHEmbedding(3)),
        TypeError,
        "background must draw without regard to the weights",
        one,
    ),
    Misuse(
        "an index that is none",
        _sampled(index="hash"),
        TypeError,
        "index must be an Index or None; got 'hash'",
        one,
    ),
    Misuse("seed=-1", _sampled(seed=-1), ValueError, "seed must be an integer of at least 0", one),
    Misuse("seed=2^32", _sampled(seed=2**32), ValueError, r"seed must be less than 2\^32", one),
    Misuse(
        "explicit class out of range",
        _sampled(explicit_classes=[1, CLASSES]),
        ValueError,
        f"explicit_classes must be less than num_classes={CLASSES}; got {CLASSES}",
        one,
    ),
    Misuse(
        "explicit class repeated",
        _sampled(explicit_classes=[1, 1]),
        ValueError,
        "explicit_classes must not repeat a class",
        one,
    ),
    Misuse("unknown tree", _tree(tree="oak"), ValueError, "tree must be one of .*; got 'oak'", one),
    Misuse(
        "clusters of a Huffman tree",
        _tree(tree="huffman", clusters=[0] * CLASSES),
        ValueError,
        "clusters must be None unless tree is 'two_level'",
        one,
    ),
    Misuse(
        "counts and clusters",
        _tree(counts=[1] * CLASSES, clusters=[0] * CLASSES),
        ValueError,
        "clusters must be None where counts are given",
        one,
    ),
    Misuse(
        "counts of too few classes",
        _tree(counts=[1, 2]),
        ValueError,
        "counts must have one entry",
        one,
    ),
    Misuse(
        "a count of -1",
        _tree(counts=[-1] + [1] * (CLASSES - 1)),
        ValueError,
        "counts must be finite and at least 0 for every class; got -1 for class 0",
        one,
    ),
    Misuse(
        "an empty cluster",
        _tree(clusters=[0] * (CLASSES - 1) + [2]),
        ValueError,
        "clusters must be numbered from 0 without gaps",
        one,
    ),
    Misuse(
        "PrecisionAtK(0)",
        lambda case: tlo.metrics.PrecisionAtK(0),
        ValueError,
        "k must be an integer of at least 1; got 0",
        one,
    ),
    Misuse(
        "TopK of no class",
        lambda case: tlo.TopK(case.make_head(), 0),
        ValueError,
        "k must be an integer of at least 1; got 0",
    ),
    Misuse(
        "TopK of more than all classes",
        lambda case: tlo.TopK(case.make_head(), CLASSES + 1),
        ValueError,
        f"k must be at most num_classes={CLASSES}; got {CLASSES + 1}",
    ),
    Misuse(
        "TopK with an unknown activation",
        lambda case: tlo.TopK(case.make_head(), 2, activation="relu"),
        ValueError,
        "activation",
    ),
    Misuse(
        "a call that excludes a class that is not there",
        lambda case: tlo.TopK(case.make_head(), 2)(
            np.ones([1, WIDTH], np.float32), exclude=[[0, CLASSES]]
        ),
        REFUSED,
        f"exclude: each id must be at least 0 and less than {CLASSES}, or -1",
    ),
    Misuse(
        "a call that excludes floats",
        lambda case: tlo.TopK(case.make_head(), 2)(
            np.ones([1, WIDTH], np.float32), exclude=[[0.0]]
        ),
        TypeError,
        "exclude must be integers that fit into int64; got dtype float32",
    ),
    Misuse(
        "TopK that allows nothing",
        lambda case: tlo.TopK(case.make_head(), 2, allow=[]),
        ValueError,
        "allow must have at least one class",
    ),
    Misuse(
        "TopK that allows a class that is not there",
        lambda case: tlo.TopK(case.make_head(), 2, allow=[CLASSES]),
        ValueError,
        f"allow must be class ids below num_classes={CLASSES}; got {CLASSES}",
    ),
    Misuse(
        "TopK with a temperature that is no number",
        lambda case: tlo.TopK(case.make_head(), 2, temperature=float("nan")),
        ValueError,
        "temperature must be a finite number above 0; got nan",
    ),
    Misuse(
        "TopK with too few names",
        lambda case: tlo.TopK(case.make_head(), 2, names=["a", "b"]),
        ValueError,
        f"names must be num_classes={CLASSES} strings; got 2",
    ),
    Misuse(
        "filtered ranks of a model that excludes nothing",
        lambda case: tlo.metrics.RecallAtK(2, filtered=True).update_state(
            [0], case.make_head()(tf.ones([1, WIDTH]))
        ),
        ValueError,
        "filtered must be False unless it is said which classes each example excludes",
    ),
    Misuse(
        "TopK of a Keras layer",
        lambda case: tlo.TopK(keras.layers.Dense(3), 2),
        TypeError,
        "head must be a Head; got",
        one,
    ),
]


def _adam_of(name: str, value: Any) -> Any:
    return tlo.optimizers.RowAdam(**{name: value})


# Labels

_IDS = "integer class ids that fit into int64; got"
_INDICATORS = f"a matrix with {CLASSES} columns, one per class, and no value above 1"
_ONES = tf.sparse.from_dense(np.eye(CLASSES, dtype="int64")[:EXAMPLES])


def soft(row: Row) -> bool:
    loss = row.make_loss()
    return loss.takes_values is not None and not getattr(loss, "has_margin", False)


def _soft(case: Case, p: Any = 0.25, **changed: Any) -> tuple[np.ndarray, Any]:
    """Two ids an example, with probabilities; id and p of the second one of example 1 as given."""
    ids = np.stack([case.y, (case.y + 1) % CLASSES], axis=1)
    probabilities = np.full(ids.shape, 0.5, "float32")
    ids[1, 1] = changed.get("c", ids[1, 1])
    probabilities[1, 1] = p
    return ids, probabilities


def _with_soft(make: Callable[[Case], Any], graph: bool = False) -> Callable[[Case], Any]:
    return lambda case: case.fit(make(case), graph=graph)


SOFT_LABELS: list[tuple[str, Callable[[Case], Any], Any, str]] = [
    (
        "more than 1",
        _with_soft(lambda case: _soft(case, p=0.6), graph=True),
        REFUSED,
        r"(?s)add up to at most 1; got.*1\.1.*in example.*1",
    ),
    (
        "a negative one",
        _with_soft(lambda case: _soft(case, p=-0.25)),
        REFUSED,
        r"(?s)be at least 0; got.*-0.25.*position.*1, 1",
    ),
    ("NaN", _with_soft(lambda case: _soft(case, p=np.nan)), REFUSED, "(?s)be finite; got.*nan"),
    ("infinity", _with_soft(lambda case: _soft(case, p=np.inf)), REFUSED, "(?s)be finite; got"),
    (
        "an id of C",
        _with_soft(lambda case: _soft(case, c=CLASSES)),
        REFUSED,
        f"(?s)less than {CLASSES}.*got id.*{CLASSES}",
    ),
    (
        "an id twice in a row",
        _with_soft(lambda case: _soft(case, c=case.y[1])),
        REFUSED,
        r"(?s)stand once in an example.*position.*1, 1",
    ),
    (
        "ids of floats",
        _with_soft(lambda case: (_soft(case)[0].astype("float32"), _soft(case)[1])),
        TypeError,
        f"{_IDS} dtype float",
    ),
    (
        "probabilities of integers",
        _with_soft(lambda case: (_soft(case)[0], np.ones((EXAMPLES, 2), int))),
        TypeError,
        "probabilities.* must be floating; got dtype int",
    ),
    (
        "another number of each",
        _with_soft(lambda case: (_soft(case)[0], _soft(case)[1][:, :1])),
        ValueError,
        "the same form and shape; got a dense tensor",
    ),
    (
        "probabilities of rank 1",
        _with_soft(lambda case: (_soft(case)[0], _soft(case)[1][:, 0])),
        ValueError,
        "the same form and shape; got a dense tensor",
    ),
]
LABELS = [
    Misuse("labels of floats", _labels([0.0] * EXAMPLES), TypeError, f"{_IDS} dtype float"),
    Misuse(
        "labels of one-hot floats",
        lambda case: case.fit(np.eye(CLASSES)[case.y]),
        TypeError,
        f"{_IDS} dtype float",
    ),
    Misuse("labels of booleans", _labels([True] * EXAMPLES), TypeError, f"{_IDS} dtype bool"),
    Misuse(
        "labels of uint64",
        lambda case: case.fit(case.y.astype("uint64")),
        TypeError,
        f"{_IDS} dtype uint64",
    ),
    Misuse(
        "labels of strings",
        lambda case: case.fit_batches(case.x, tf.strings.as_string(case.y)),
        TypeError,
        f"{_IDS} dtype string",
    ),
    Misuse("no labels", lambda case: case.fit_batches(case.x), TypeError, f"{_IDS} None"),
    Misuse(
        "a label of C",
        lambda case: case.fit(_of_c(case), graph=True),
        REFUSED,
        rf"less than {CLASSES}.*got id.*\[{CLASSES}\].*\[\[1 0\]\]",
    ),
    Misuse(
        "a label of -2",
        _labels([0, 1, -2] + [1] * (EXAMPLES - 3)),
        REFUSED,
        r"(?s)got id.*-2.*position.*2, 0",
    ),
    Misuse(
        "a label of C, eagerly", lambda case: case.fit(_of_c(case)), REFUSED, f"less than {CLASSES}"
    ),
    Misuse(
        "a label of C in evaluate",
        lambda case: case.model.evaluate(case.x, np.full(EXAMPLES, CLASSES), verbose=0),
        REFUSED,
        f"less than {CLASSES}",
    ),
    Misuse(
        "labels of rank 3",
        _labels([[[1]]] * EXAMPLES),
        (ValueError, REFUSED),
        "labels must have rank 1",
    ),
    Misuse(
        "ragged labels of rank 3",
        lambda case: case.fit_batches(case.x, tf.ragged.constant([[[1]]] * EXAMPLES)),
        ValueError,
        "RaggedTensor labels must have rank 2",
    ),
    Misuse(
        "labels of another batch",
        lambda case: case.fit_batches(case.x, tf.constant(case.y[:-1])),
        (ValueError, REFUSED),
        "first dimensions must be the batch dimensions|batch",
    ),
    Misuse(
        "an indicator matrix of integers",
        lambda case: case.fit(np.eye(CLASSES, dtype="int64")[case.y]),
        REFUSED,
        _INDICATORS,
    ),
    Misuse(
        "a sparse indicator matrix of integers",
        lambda case: case.fit_batches(case.x, _ONES),
        REFUSED,
        _INDICATORS,
    ),
    *(
        Misuse(f"soft labels: {what}", act, error, message, soft)
        for what, act, error, message in SOFT_LABELS
    ),
    Misuse(
        "soft labels in evaluate: a negative probability",
        lambda case: case.model.evaluate(case.x, _soft(case, p=-0.5), verbose=0),
        REFUSED,
        r"(?s)be at least 0; got.*-0.5",
        soft,
    ),
    Misuse(
        "soft labels for a loss to which they mean nothing",
        lambda case: case.fit(_soft(case)),
        TypeError,
        "must get integer class ids as labels; got sparse targets or soft labels",
        lambda row: not soft(row),
    ),
    Misuse(
        "sparse targets of a half for a loss to which values mean nothing",
        lambda case: case.fit_batches(case.x, tf.cast(_ONES, tf.float32) * 0.5),
        REFUSED,
        r"must get class ids, or sparse targets of zeros and ones; got",
        lambda row: not soft(row),
    ),
    Misuse(
        "sparse targets of too few columns",
        lambda case: case.fit_batches(
            case.x, tf.cast(tf.sparse.slice(_ONES, [0, 0], [EXAMPLES, 3]), tf.float32)
        ),
        (ValueError, TypeError),
        r"\[B, C\] with C = 24",
    ),
]


def _of_c(case: Case) -> np.ndarray:
    y = case.y.copy()
    y[1] = CLASSES
    return y


# Activations, weights, shapes

_WEIGHTS = "sample_weight must broadcast"
INPUTS = [
    Misuse(
        "h that is not a number",
        lambda case: case.fit(x=np.full_like(case.x, np.nan), graph=True),
        REFUSED,
        "finite",
        self_updating,
    ),
    Misuse(
        "h that is not a number in one example",
        lambda case: case.fit(x=_with(np.nan, case.x)),
        REFUSED,
        "finite",
        self_updating,
    ),
    Misuse(
        "h of another width",
        lambda case: case.head(tf.ones([2, WIDTH + 1])),
        ValueError,
        "incompatible with the layer|expected axis -1",
    ),
    Misuse(
        "h of unknown width",
        lambda case: case.make_head().build((None, None)),
        ValueError,
        "last dimension of the hidden activations must be known",
    ),
    Misuse(
        "h of integers",
        lambda case: case.make_head()(tf.ones([2, WIDTH], tf.int32)),
        TypeError,
        "must get a dense floating tensor",
    ),
    Misuse(
        "h that is sparse",
        lambda case: case.make_head()(tf.sparse.from_dense(tf.ones([2, WIDTH]))),
        TypeError,
        "must get a dense floating tensor",
    ),
    Misuse(
        "sample weights of too many columns",
        lambda case: case.fit(sample_weight=np.ones((EXAMPLES, 2))),
        ValueError,
        _WEIGHTS,
    ),
    Misuse(
        "sample weights that are not numbers",
        lambda case: case.fit(sample_weight=np.full(EXAMPLES, np.nan)),
        REFUSED,
        "finite",
        self_updating,
    ),
    Misuse(
        "sample weights that are words",
        lambda case: case.row.make_loss()(case.y, case.model(case.x), ["a"] * EXAMPLES),
        TypeError,
        "sample_weight must be numbers; got dtype string",
    ),
    Misuse(
        "class_weight with labels [B, 2]",
        lambda case: case.fit(np.stack([case.y, case.y], axis=1), class_weight={0: 2.0, 1: 1.0}),
        ValueError,
        "class_weight must be left out unless each example has one label",
    ),
]


def _with(value: float, x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[1, 2] = value
    return x


# Losses, optimizers and models

_FAMILY = "is trained by losses of .* alone"
_NO_HEAD = "needs the output of a head"


def _validation(case: Case, y: Any) -> keras.callbacks.Callback:
    return tlo.callbacks.SampledValidation(case.x, y)


TRAINING = [
    Misuse(
        "settings chosen in no time",
        lambda case: tlo.choose_settings(case.model, (case.x, case.y), seconds=0),
        ValueError,
        "seconds must be a finite number above 0; got 0",
    ),
    Misuse(
        "settings chosen on too few rows",
        lambda case: tlo.choose_settings(case.model, (case.x, case.y)),
        ValueError,
        "data must have at least 10 rows to hold some out, or validation be given; got 6",
        one,
    ),
    Misuse(
        "validation on rows without labels",
        lambda case: case.fit(callbacks=[_validation(case, np.full(EXAMPLES, -1))]),
        ValueError,
        "SampledValidation needs at least one row with a label; got 6 rows without",
    ),
    Misuse(
        "validation on labels of other rows",
        lambda case: case.fit(callbacks=[_validation(case, case.y[:2])]),
        ValueError,
        r"SampledValidation needs x, y and weights of equally many rows; got \[2, 6\]",
        one,
    ),
    Misuse(
        "Keras's loss by name",
        lambda case: case.fit_with(loss="sparse_categorical_crossentropy"),
        TypeError,
        _FAMILY,
        self_updating,
    ),
    Misuse(
        "Keras's loss from logits",
        lambda case: case.fit_with(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        ),
        TypeError,
        _FAMILY,
        self_updating,
    ),
    Misuse(
        "a loss of the package in a function",
        lambda case: case.fit_with(loss=lambda y, logits: 2 * case.row.make_loss()(y, logits)),
        TypeError,
        "also casts the labels of a loss that is a function: subclass HeadLoss",
        one,
    ),
    *(
        Misuse(
            f"{name} of a head that updates its weights itself",
            lambda case, name=name: _penalized(case, name),
            ValueError,
            f"{name} of .* must be None, as .*Head .* updates its weights itself; got",
            lambda row: first_of_a_class(row) and self_updating(row),
        )
        for name in ("activity_regularizer", "regularizer", "constraint")
    ),
    *(
        Misuse(
            f"a penalty on a gradient of the inputs, {name}",
            penalize,
            REFUSED,
            "computes its own gradient, which has no derivative; got a gradient of a gradient",
            lambda row: first_of_a_class(row) and (self_updating(row) or row.is_tied),
        )
        for name, penalize in (
            ("which a trunk reads", lambda case: _gradient_penalty(case)),
            ("which the head reads", lambda case: _gradient_penalty_of_head(case)),
            ("in a graph", lambda case: case.head and tf.function(_gradient_penalty_of_head)(case)),
        )
    ),
    Misuse(
        "a head for each position",
        lambda case: _behind_time(case),
        TypeError,
        _NO_HEAD,
        one,
    ),
    Misuse(
        "a loss of the user's own, on the logits",
        lambda case: case.fit_with(loss=lambda y, logits: tf.reduce_mean(logits)),
        TypeError,
        _FAMILY,
        self_updating,
    ),
    Misuse(
        "a softmax behind the head, and Keras's loss",
        lambda case: _behind(case, keras.layers.Softmax()).fit(case.x, case.y, verbose=0),
        TypeError,
        _FAMILY,
        self_updating,
    ),
    Misuse(
        "a frozen trunk, and Keras's loss",
        lambda case: _frozen_trunk(case),
        TypeError,
        _FAMILY,
        self_updating,
    ),
    Misuse(
        "a softmax behind the head, and its loss",
        lambda case: case.compile(_behind(case, keras.layers.Softmax())).fit(
            case.x, case.y, verbose=0
        ),
        TypeError,
        _NO_HEAD,
    ),
    Misuse(
        "a gradient of the logits in training",
        lambda case: _logits_gradient(case),
        TypeError,
        _FAMILY,
        self_updating,
    ),
    Misuse(
        "a loss of another family",
        lambda case: case.fit_with(loss=_other_loss(case.row)),
        TypeError,
        "Use a loss for what the head gives",
    ),
    Misuse("the loss on a Dense layer", lambda case: _on_dense(case), TypeError, _NO_HEAD),
    Misuse(
        "the loss on what predict gave",
        lambda case: case.row.make_loss()(case.y, case.model.predict(case.x, verbose=0)),
        TypeError,
        _NO_HEAD,
    ),
    Misuse(
        "a gradient of the exact loss",
        lambda case: _exact_gradient(case),
        LookupError,
        "training=True",
    ),
    Misuse(
        "use_ema of the model's optimizer",
        lambda case: case.fit_with(optimizer=keras.optimizers.SGD(use_ema=True)),
        ValueError,
        "take no part in an average over steps",
        self_updating,
    ),
    Misuse(
        "no optimizer for the model",
        lambda case: case.fit_with(optimizer=None),
        ValueError,
        "must be compiled with an optimizer.*got optimizer=None",
        self_updating,
    ),
    Misuse(
        "the policy float16",
        lambda case: _with_float16(case),
        ValueError,
        "must not have float16 weights",
    ),
    Misuse(
        "a function compiled with XLA",
        lambda case: tf.function(lambda x: case.model(x, training=True), jit_compile=True)(case.x),
        RuntimeError,
        "can't be compiled with XLA",
    ),
    Misuse(
        "one optimizer for two heads",
        lambda case: _shared_optimizer(case),
        ValueError,
        "optimizer must be one that serves no other layer",
        row_updating,
    ),
    Misuse(
        "the optimizer of a head that is built",
        lambda case: setattr(case.head, "optimizer", tlo.optimizers.RowAdam(0.1)),
        AttributeError,
        "can't be replaced once the head is built",
        row_updating,
    ),
    Misuse(
        "one index for two heads",
        lambda case: _shared_index(case),
        ValueError,
        "index must serve no other",
        one,
    ),
    Misuse(
        "a learning rate that is not a number",
        lambda case: _rate(case, float("nan")),
        (REFUSED, ValueError),
        "learning_rate",
        lambda row: row_updating(row) or factored(row),
    ),
    Misuse(
        "a learning rate below 0",
        lambda case: _rate(case, -0.1),
        (REFUSED, ValueError),
        "learning_rate",
        lambda row: row_updating(row) or factored(row),
    ),
    Misuse(
        "top_k_model of a model without a head",
        lambda case: tlo.top_k_model(
            keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(CLASSES)]), 2
        ).predict(case.x, verbose=0),
        (TypeError, ValueError),
        "head",
        one,
    ),
    Misuse(
        "bad labels for one of two heads",
        lambda case: _two_heads(case, labels=True),
        REFUSED,
        f"less than {CLASSES}",
        self_updating,
    ),
    Misuse(
        "h that is not finite for one of two heads",
        lambda case: _two_heads(case, labels=False),
        REFUSED,
        "finite",
        self_updating,
    ),
]


def _behind(case: Case, layer: Any) -> keras.Model:
    model = keras.Model(case.model.inputs, layer(case.model.outputs[0]))
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    return model


def _penalized(case: Case, name: str) -> None:
    owner = head = case.head
    if name != "activity_regularizer":
        owner = next(w for w in head.weights if w is not head.gradient_anchor)
    penalty = keras.constraints.NonNeg() if name == "constraint" else keras.regularizers.L2(0.1)
    setattr(owner, name, penalty)
    try:
        case.fit()
    finally:
        setattr(owner, name, None)


def _gradient_penalty(case: Case) -> None:
    _penalize(case, case.model, lambda: [case.model.get_layer("trunk").kernel.value])


def _gradient_penalty_of_head(case: Case) -> None:
    head = case.head
    own = head.kernel if case.row.is_tied else head.gradient_anchor
    _penalize(case, head, lambda: [tf.convert_to_tensor(own)])


def _penalize(case: Case, model: Any, weights: Callable[[], list[tf.Tensor]]) -> None:
    x = tf.constant(case.x)
    with case.head.without_update(), tf.GradientTape() as outer:
        outer.watch(weights())
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = case.row.make_loss()(case.y, model(x, training=True))
        loss += tf.reduce_sum(inner.gradient(loss, x) ** 2)
    outer.gradient(loss, weights())


def _behind_time(case: Case) -> None:
    inputs = keras.Input((3, WIDTH))
    model = keras.Model(inputs, keras.layers.TimeDistributed(case.make_head())(inputs))
    case.compile(model).fit(np.stack([case.x] * 3, 1), np.stack([case.y] * 3, 1), verbose=0)


def _frozen_trunk(case: Case) -> None:
    case.model.get_layer("trunk").trainable = False
    case.fit_with(loss="sparse_categorical_crossentropy")


def _logits_gradient(case: Case) -> None:
    x = tf.constant(case.x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_max(case.model(x, training=True))
    tape.gradient(value, x)


def _exact_gradient(case: Case) -> None:
    with tf.GradientTape() as tape:
        value = case.row.make_loss()(case.y, case.model(case.x, training=False))
    tape.gradient(value, case.model.trainable_variables)


def _other_loss(row: Row) -> Any:
    gives = row.make_head(CLASSES).gives
    losses = (other.make_loss() for other in HEADS)
    return next(loss for loss in losses if loss.trains_on not in gives)


def _on_dense(case: Case) -> None:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(CLASSES)])
    case.compile(model).fit(case.x, case.y, verbose=0)


def _with_float16(case: Case) -> None:
    keras.config.set_dtype_policy("float16")
    case.make_model()


def _built_with(case: Case, **options: Any) -> None:
    optimizer = tlo.optimizers.RowAdam(0.1, **options)
    SampledHead(CLASSES, tlo.samplers.Uniform(3), optimizer).build((None, WIDTH))


def _shared_optimizer(case: Case) -> None:
    optimizer = tlo.optimizers.RowAdam(0.1)
    heads = [case.make_head(), case.make_head()]
    for head in heads:
        head.optimizer = optimizer
    for head in heads:
        head.build((None, WIDTH))


def _shared_index(case: Case) -> None:
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 2, 2)
    for _ in range(2):
        _sampled(sampler=tlo.samplers.LSHEmbedding(3), index=index)(case)


def _rate(case: Case, rate: float) -> None:
    owner = getattr(case.model.layers[-1], "optimizer", case.head)
    before = float(owner.learning_rate)
    try:
        owner.learning_rate = rate
        case.fit(graph=True)
    finally:
        owner.learning_rate = before


def _two_heads(case: Case, labels: bool) -> None:
    """Trains two heads, the second with wrong arguments. The first must not change."""
    inputs = [keras.Input((WIDTH,)), keras.Input((WIDTH,))]
    heads = [case.make_head(name="left"), case.make_head(name="right")]
    model = keras.Model(inputs, [head(x) for head, x in zip(heads, inputs, strict=True)])
    model.compile(case.row.make_optimizer(), [case.row.make_loss(), case.row.make_loss()])
    good, bad = (case.x, case.y), (_with(np.inf, case.x), case.y)
    if labels:
        bad = (case.x, np.full(EXAMPLES, CLASSES))
    model.fit([good[0]] * 2, [good[1]] * 2, verbose=0)
    weights = model.weights
    before = [keras.ops.convert_to_numpy(w) for w in weights]
    for _ in range(3):
        try:
            model.fit([good[0], bad[0]], [good[1], bad[1]], verbose=0)
        except REFUSED as error:
            refusal = error
        for old, weight in zip(before, weights, strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), old)
    raise refusal


# Files

FILES = [
    Misuse(
        "weights of other classes",
        lambda case: _load(case, case.make_model(num_classes=CLASSES + 1)),
        ValueError,
        r"must have the shapes of .*has shape \(2.*saved was \(2",
        untied,
        keeps_state=False,
    ),
    Misuse(
        "weights of another tree",
        lambda case: _other_tree(case),
        ValueError,
        "must belong to the tree of",
        tree,
        keeps_state=False,
    ),
    Misuse(
        "weights of another tree, by set_weights",
        lambda case: _set_other_tree(case),
        REFUSED,
        "must belong to this head's tree",
        tree,
        keeps_state=False,
    ),
    Misuse(
        "the average of two states",
        lambda case: _average(case),
        ValueError,
        "must fit each other; got weights that do not",
        factored,
        keeps_state=False,
    ),
    Misuse(
        "a .keras file that is cut off",
        lambda case: _cut_off(case),
        Exception,
        "(?i)zip|not found|truncated|open",
    ),
]


def _load(case: Case, other: keras.Model) -> None:
    path = str(case.folder / "other.weights.h5")
    other.save_weights(path)
    head, before = case.head, [w.numpy() for w in case.head.weights]
    try:
        case.model.load_weights(path)
    finally:  # Keras has loaded the trunk, and may have loaded the head's optimizer
        for old, weight in zip(before, head.weights, strict=True):
            np.testing.assert_array_equal(weight.numpy(), old)


def _other_head(case: Case) -> Any:
    counts = np.arange(1, CLASSES + 1) ** 3
    if case.head.tree == "huffman":
        return case.make_model(counts=counts)
    return case.make_model(clusters=equal_clusters(CLASSES)[::-1])


def _other_tree(case: Case) -> None:
    _load(case, _other_head(case))


def _set_other_tree(case: Case) -> None:
    case.model.set_weights(_other_head(case).get_weights())
    case.model.evaluate(case.x, case.y, verbose=0)


def _average(case: Case) -> None:
    other = case.compile(case.make_model())
    times = 30
    data = np.tile(case.x, (times, 1)), np.tile(case.y, times)
    other.fit(data[0][::-1], data[1], batch_size=EXAMPLES, verbose=0)
    case.fit(data[1], data[0], batch_size=EXAMPLES)
    pairs = zip(case.model.get_weights(), other.get_weights(), strict=True)
    case.model.set_weights([(a + b) / 2 for a, b in pairs])


def _cut_off(case: Case) -> None:
    path = case.folder / "model.keras"
    case.model.save(path)
    path.write_bytes(path.read_bytes()[:-500])
    keras.saving.load_model(path)


MISUSES = [*ARGUMENTS, *LABELS, *INPUTS, *TRAINING, *FILES]
