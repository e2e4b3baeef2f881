# SPDX-License-Identifier: Apache-2.0
"""Soft labels: ids with probabilities, in all forms, losses and metrics; errors."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from losses.candidate_cases import CLASSES, examples_of, random_case
from losses.test_candidate_losses import LOSSES, make, oracle_of
from oracles import softmax as oracle
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout.losses import SoftmaxCrossentropy

WIDTH = 3
RNG = np.random.default_rng(4)
IDS = np.array([[1, 2, 8], [3, -1, -1], [7, 0, -1], [-1, -1, -1], [9, 4, 11], [5, 6, -1]])
P = np.array(
    [[0.5, 0.2, 0.1], [1, 9, np.nan], [0, 0.6, 5], [0.3, 0.3, 9], [0.25, 0.5, 0.25], [0, 0, 1]],
    "float32",
)
N = len(IDS)
X = RNG.normal(size=(N, WIDTH)).astype("float32")
LISTS = [[x[n][IDS[n] >= 0] for n in range(N)] for x in (IDS, P)]
LABELLED = (IDS >= 0).any(axis=1)
SHARED = [3, 0, 7, 7, 11, 5]


def dense(remaining="ignore", smoothing=0.0):
    """The target distributions, [N, C]; 0 without labels."""
    targets = oracle.smoothed(oracle.soft_targets(*LISTS, CLASSES, remaining), smoothing)
    return targets * LABELLED[:, np.newaxis]


def head_of(kind=tlo.heads.DenseHead, *arguments, **options):
    head = kind(CLASSES, *arguments, **options)
    head.build(X.shape)
    rng = np.random.default_rng(5)
    head.kernel.assign(rng.normal(size=(CLASSES, WIDTH)))
    head.bias.assign(rng.normal(size=CLASSES))
    return head


def weights_of(head):
    return head.kernel.numpy(), head.bias.numpy()


def ragged(values, empty):
    return tf.ragged.constant([list(values[n][IDS[n] >= 0]) for n in range(N)], dtype=empty)


def var_len(values):
    """As `tf.io.VarLenFeature` reads it."""
    there = np.argwhere(IDS >= 0)
    columns = [np.sum(IDS[n, :k] >= 0) for n, k in there]
    return tf.SparseTensor(np.c_[there[:, 0], columns], values[IDS >= 0], IDS.shape)


def targets_of_columns():
    there = np.argwhere(IDS >= 0)
    indices = np.c_[there[:, 0], IDS[IDS >= 0]]
    return tf.sparse.reorder(tf.SparseTensor(indices, P[IDS >= 0], [N, CLASSES]))


FORMS = {
    "pair": lambda: (IDS, P),
    "list": lambda: [IDS.tolist(), P.tolist()],
    "tensors": lambda: (tf.constant(IDS, tf.int32), tf.constant(P, tf.float64)),
    "dict": lambda: {"probabilities": P, "ids": IDS},
    "ragged": lambda: (ragged(IDS, tf.int64), ragged(P, tf.float32)),
    "as VarLenFeature": lambda: (var_len(IDS), var_len(P)),
    "sparse targets": targets_of_columns,
}


@pytest.mark.all_cases
@pytest.mark.parametrize("form", list(FORMS))
def test_all_forms_are_the_same_target(form):
    head = head_of()
    values = SoftmaxCrossentropy(reduction="none")(FORMS[form](), head(X))
    expected, _ = oracle.cross_entropy_of(dense(), X, *weights_of(head))
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    mean = SoftmaxCrossentropy()(FORMS[form](), head(X))
    np.testing.assert_allclose(mean, expected.sum() / LABELLED.sum(), rtol=1e-5)


def test_half_floats_and_positions():
    head, p = head_of(), np.array([[0.5, 0.25], [1, 0]])
    for dtype in ("float16", "bfloat16"):
        both = np.array([[1, 2], [3, -1]]), tf.constant(p, dtype)
        flat = SoftmaxCrossentropy()(both, head(X[:2]))
        one = SoftmaxCrossentropy()([part[tf.newaxis] for part in both], head(X[:2][np.newaxis]))
        np.testing.assert_allclose(one, flat, rtol=1e-6)
    one = SoftmaxCrossentropy(reduction="none")(([[1, 3]], p[:, 0][np.newaxis]), head(X[:2][None]))
    np.testing.assert_allclose(
        one[0, 1], oracle.cross_entropy(X[1:2], *weights_of(head), [[3]])[0], rtol=1e-5
    )


def exact(**options):
    return head_of(tlo.heads.ExactSoftmaxHead, tlo.optimizers.RowSGD(1.0), **options)


HEADS = {
    "dense": head_of,
    "all": lambda: exact(backward="all"),
    "selected": lambda: exact(num_selected=CLASSES),
}


@pytest.mark.all_cases
@pytest.mark.parametrize("name", list(HEADS))
@pytest.mark.parametrize("remaining", ["ignore", "spread"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_and_gradients_are_the_oracles(name, remaining, smoothing):
    head = HEADS[name]()
    loss = SoftmaxCrossentropy(label_smoothing=smoothing, remaining=remaining, reduction="sum")
    before, hidden = weights_of(head), tf.constant(X)
    values, by = oracle.cross_entropy_of(dense(remaining, smoothing), X, *before)
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        value = loss((IDS, P), head(hidden, training=True))
    sources = [hidden, *(w.value for w in (head.kernel, head.bias) if name == "dense")]
    found = tape.gradient(value, sources)
    if name != "dense":
        head.take_step()
        found += [old - new for old, new in zip(before, weights_of(head), strict=True)]
    np.testing.assert_allclose(value, values.sum(), rtol=1e-5)
    for ours, theirs in zip(found, by, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    evaluated = loss((IDS, P), HEADS[name]()(X))
    np.testing.assert_allclose(evaluated, values.sum(), rtol=1e-5)


def test_the_penalty_is_that_of_the_example_and_all_classes_leave_nothing_to_spread_on():
    head = head_of()
    every = np.arange(CLASSES)[np.newaxis], np.full((1, CLASSES), 0.5 / CLASSES)
    losses = [
        SoftmaxCrossentropy(gamma, remaining=remaining)(every, head(X[:1])).numpy()
        for gamma in (0, 0.5)
        for remaining in ("ignore", "spread")
    ]
    np.testing.assert_allclose(losses[:2], [losses[0]] * 2, rtol=1e-6)
    log_z = np.log(np.exp(oracle.logits(X[:1], *weights_of(head))).sum())
    np.testing.assert_allclose(np.subtract(losses[2:], losses[:2]), 0.5 * log_z**2, rtol=1e-4)


TAKE_PROBABILITIES = [name for name, (kind, _, _) in LOSSES.items() if kind.takes_values]


def test_no_estimator_has_lost_its_soft_labels():
    assert len(TAKE_PROBABILITIES) >= 14


@pytest.mark.parametrize("name", TAKE_PROBABILITIES)
def test_an_estimator_is_the_mean_over_labels_by_their_probabilities(name):
    rows = [[1, 2, 8], [3], [7, 0], [9, 4]]
    statistics = random_case(np.random.default_rng(0), rows, SHARED)
    shares = np.where(statistics.labels.ids >= 0, RNG.random((4, 3)) / 3, 0)
    loss = make(name)
    labels = loss.checked(statistics.labels._replace(values=tf.constant(shares)), CLASSES)
    values = loss.from_statistics(statistics._replace(labels=labels))
    values = loss.of_probabilities(values, labels)
    examples, places = examples_of(statistics)
    expected = [
        oracle_of(name)(example, over_labels=lambda each, own=own: np.sum(own * each))
        for example, own in zip(examples, [shares[n][places[n][0]] for n in range(4)], strict=True)
    ]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)


# Training


def model_with(head, loss, optimizer="sgd", **arguments):
    model = keras.Sequential([keras.Input([WIDTH]), head])
    model.compile(optimizer, loss=loss, **arguments)
    return model


def problem(count=32, k=4, mass=1.0):
    rng = np.random.default_rng(1)
    ids = np.argsort(rng.random((count, CLASSES)))[:, :k]
    p = rng.dirichlet(np.ones(k), count).astype("float32") * np.float32(mass)
    return rng.normal(size=(count, WIDTH)).astype("float32"), ids, p


def targets_of(ids, p, remaining="ignore"):
    return oracle.soft_targets(list(ids), list(p), CLASSES, remaining).astype("float32")


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("name", "mass", "smoothing"),
    [
        ("dense", 0.7, 0.1),
        ("all", 0.7, 0.0),
        ("candidates", 1.0, 0.0),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in [("dense", 0.7, 0.0), ("dense", 1.0, 0.0), ("all", 0.7, 0.1)]
        ),
    ],
)
def test_steps_are_those_of_kerass_loss_of_dense_targets(name, mass, smoothing):
    x, ids, p = problem(mass=mass)
    full = keras.layers.Dense(CLASSES)
    theirs = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    if name == "candidates":
        sampler = tlo.samplers.Uniform(CLASSES)
        head, loss = (
            tlo.heads.SampledHead(CLASSES, sampler, tlo.optimizers.RowAdam(0.05)),
            (tlo.losses.SampledSoftmax()),
        )
    else:
        loss = SoftmaxCrossentropy(label_smoothing=smoothing, remaining="spread")
        head = tlo.heads.DenseHead(CLASSES)
        if name == "all":
            head = tlo.heads.ExactSoftmaxHead(CLASSES, tlo.optimizers.RowAdam(0.05), backward="all")
    ours = model_with(head, loss, keras.optimizers.Adam(0.05), metrics=["accuracy"])
    model = model_with(full, theirs, keras.optimizers.Adam(0.05), metrics=["accuracy"])
    full.kernel.assign(tf.transpose(head.kernel))
    options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
    got = ours.fit(x, (ids, p), validation_data=(x, (ids, p)), **options).history
    dense_targets = targets_of(ids, p, "spread")
    want = model.fit(x, dense_targets, validation_data=(x, dense_targets), **options).history
    for key in want:
        np.testing.assert_allclose(got[key], want[key], rtol=1e-4, err_msg=key)
    np.testing.assert_allclose(head.kernel, tf.transpose(full.kernel), rtol=1e-3, atol=1e-4)


def ways_of_fit(x, ids, p, w):
    data = tf.data.Dataset.from_tensor_slices((x, (ids, p), w)).batch(8)

    class Sequence(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, n):
            own = slice(8 * n, 8 * n + 8)
            return x[own], {"ids": ids[own], "probabilities": p[own]}, w[own]

    def generator():
        yield from Sequence()

    options = {"batch_size": 8, "shuffle": False}
    return {
        "arrays": lambda m: m.fit(x, (ids, p), sample_weight=w, verbose=0, **options),
        "list": lambda m: m.fit(x, [ids, p], sample_weight=w, verbose=0, **options),
        "dict": lambda m: m.fit(
            x, {"ids": ids, "probabilities": p}, sample_weight=w, verbose=0, **options
        ),
        "by the name of the output": lambda m: m.fit(
            x, {m.layers[-1].name: (ids, p)}, sample_weight=w, verbose=0, **options
        ),
        "data set": lambda m: m.fit(data, verbose=0),
        "sequence": lambda m: m.fit(Sequence(), shuffle=False, verbose=0),
        "generator": lambda m: m.fit(generator(), verbose=0),
        "batches": lambda m: [
            m.train_on_batch(x[i : i + 8], (ids[i : i + 8], p[i : i + 8]), w[i : i + 8])
            for i in range(0, 32, 8)
        ],
    }


def test_every_way_through_fit_trains_alike_with_sample_weights():
    x, ids, p = problem(mass=0.7)
    w = np.random.default_rng(0).random(32).astype("float32")
    kernels = []
    for way in ways_of_fit(x, ids, p, w).values():
        head = head_of()
        model = model_with(
            head, SoftmaxCrossentropy(), weighted_metrics=["accuracy"], run_eagerly=True
        )
        way(model)
        kernels.append(head.kernel.numpy())
        before = head_of().kernel.numpy()
    for kernel in kernels[1:]:
        np.testing.assert_allclose(kernel, kernels[0], rtol=1e-6, atol=1e-7)
    assert np.abs(kernels[0] - before).max() > 1e-3
    weighted = model.evaluate(x, (ids, p), sample_weight=w, verbose=0, return_dict=True)
    values, _ = oracle.cross_entropy_of(targets_of(ids, p), x, *weights_of(head))
    np.testing.assert_allclose(weighted["loss"], (w * values).mean(), rtol=1e-5)
    hit = oracle.logits(x, *weights_of(head)).argmax(axis=1) == ids[np.arange(32), p.argmax(axis=1)]
    np.testing.assert_allclose(weighted["accuracy"], (w * hit).sum() / w.sum(), rtol=1e-5)


def test_a_sequence_with_a_mask_validation_split_and_one_of_several_outputs():
    x, ids, p = problem(count=24, mass=0.9)
    shape = 6, 4
    x, ids, p = (part.reshape(*shape, -1) for part in (x, ids, p))
    x[0, 1:] = 0
    inputs = keras.Input([4, WIDTH])
    hidden = keras.layers.Masking()(inputs)
    heads = [tlo.heads.DenseHead(CLASSES, name=name) for name in ("soft", "hard")]
    model = keras.Model(inputs, {head.name: head(hidden) for head in heads})
    model.compile(
        "sgd",
        loss={head.name: SoftmaxCrossentropy() for head in heads},
        metrics={"soft": ["accuracy"], "hard": [tlo.metrics.PrecisionAtK(1)]},
        run_eagerly=True,
    )
    y = {"soft": (ids, p), "hard": ids[..., 0]}
    model.fit(x, y, validation_split=0.5, epochs=2, verbose=0)
    found = model.evaluate(x, y, verbose=0, return_dict=True)
    counts = np.ones(shape, bool)
    counts[0, 1:] = False
    kernel, bias = weights_of(heads[0])
    values, _ = oracle.cross_entropy_of(
        targets_of(ids.reshape(24, -1), p.reshape(24, -1)), x.reshape(24, -1), kernel, bias
    )
    np.testing.assert_allclose(found["soft_loss"], values[counts.ravel()].mean(), rtol=1e-5)
    listed = keras.Model(inputs, [head(hidden) for head in heads])
    listed.compile("sgd", loss=[SoftmaxCrossentropy(), SoftmaxCrossentropy()])
    again = listed.evaluate(x, [(ids, p), ids[..., 0]], verbose=0, return_dict=True)
    np.testing.assert_allclose(again["loss"], found["loss"], rtol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_with_class_weights_and_an_ignored_class(training):
    head, weights = head_of(), np.random.default_rng(8).uniform(0.2, 3, CLASSES)
    loss = SoftmaxCrossentropy(reduction="none", class_weights=weights, ignore_class=2)
    values = loss((IDS, P), head(X, training=training))
    targets = dense()
    targets[:, 2] = 0
    log_p = oracle.log_softmax(oracle.logits(X, *weights_of(head)))
    np.testing.assert_allclose(values, -(weights * targets * log_p).sum(axis=1), rtol=1e-5)
    other = np.where(IDS < 0, 500, IDS)
    same = SoftmaxCrossentropy(ignore_class=500)((other, P), head(X, training=training))
    np.testing.assert_allclose(same, SoftmaxCrossentropy()((IDS, P), head(X)), rtol=1e-6)


@pytest.mark.parametrize("accumulate", [*thorough(None), 2])
@pytest.mark.cpu
def test_one_probability_of_1_is_a_hard_label_bit_for_bit(accumulate):
    kernels = []
    for y in (IDS[:, 0], (IDS[:, :1], np.ones((N, 1), "float32")), (IDS[:, 0], np.ones(N))):
        keras.utils.set_random_seed(0)
        sampler = tlo.samplers.LogUniform(5)
        head = tlo.heads.SampledHead(CLASSES, sampler, tlo.optimizers.RowAdam(0.05), seed=3)
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulate)
        model = model_with(head, tlo.losses.ComplementarySum(), optimizer)
        model.fit(X, y, batch_size=3, epochs=3, shuffle=False, verbose=0)
        kernels.append(head.kernel.numpy())
    np.testing.assert_array_equal(kernels[1], kernels[0])
    np.testing.assert_array_equal(kernels[2], kernels[0])


def test_squared_error_takes_a_pair_for_its_targets():
    head = head_of()
    y = np.where(IDS < 0, -1, IDS), np.where(IDS < 0, np.nan, 3 - 10 * P).astype("float32")
    values = tlo.losses.SquaredError(reduction="none")(y, head(X))
    targets = np.zeros((N, CLASSES))
    for row, column in np.argwhere(IDS >= 0):
        targets[row, IDS[row, column]] = y[1][row, column]
    logits = oracle.logits(X, *weights_of(head))
    np.testing.assert_allclose(values, ((logits - targets) ** 2).sum(axis=1), rtol=1e-5)
    with pytest.raises(ValueError, match="ignore_class must be None for targets with values"):
        tlo.losses.SquaredError(ignore_class=3)(y, head(X))
    with pytest.raises(ValueError, match="class_weights must be None for sparse targets"):
        tlo.losses.SquaredError(class_weights=np.ones(CLASSES))(y, head(X))


def test_a_loss_that_spreads_is_saved_with_the_model(tmp_path):
    model = model_with(tlo.heads.DenseHead(CLASSES), SoftmaxCrossentropy(remaining="spread"))
    x, ids, p = problem(mass=0.7)
    model.fit(x, (ids, p), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.remaining == "spread"
    assert loaded.evaluate(x, (ids, p), verbose=0) == model.evaluate(x, (ids, p), verbose=0)


# Metrics


def test_metrics_of_soft_labels():
    head = head_of()
    metrics = [
        tlo.metrics.PrecisionAtK(3),
        tlo.metrics.RecallAtK(3),
        tlo.metrics.ExactLoss(),
        keras.metrics.SparseTopKCategoricalAccuracy(3, name="top_3"),
        keras.metrics.CategoricalCrossentropy(from_logits=True, name="entropy"),
    ]
    model = model_with(head, SoftmaxCrossentropy(), metrics=[*metrics, "accuracy"])
    got = model.evaluate(X, (IDS, P), verbose=0, return_dict=True)
    logits = oracle.logits(X, *weights_of(head))
    order, log_p = oracle.top_k(logits, CLASSES), oracle.log_softmax(logits)
    targets = dense()
    rows = [n for n in range(N) if targets[n].any()]  # rows with a probability above 0
    sets = [set(np.flatnonzero(targets[n])) for n in rows]
    found = [len(own & set(order[n, :3])) for own, n in zip(sets, rows, strict=True)]
    best = [targets[n].argmax() for n in rows]
    expected = {
        "precision_at_3": np.mean(found) / 3,
        "recall_at_3": np.mean([f / len(own) for f, own in zip(found, sets, strict=True)]),
        "exact_loss": np.mean([-(targets[n] @ log_p[n]) / targets[n].sum() for n in rows]),
        "top_3": np.mean([b in order[n, :3] for b, n in zip(best, rows, strict=True)]),
        "entropy": np.mean([-(targets[n] @ log_p[n]) for n in rows]),
        "accuracy": np.mean([b == order[n, 0] for b, n in zip(best, rows, strict=True)]),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, err_msg=name)
    alone = tlo.metrics.ExactLoss()
    alone.update_state((IDS, P), tf.constant(logits))
    np.testing.assert_allclose(alone.result(), expected["exact_loss"], rtol=1e-6)


def test_of_equal_probabilities_accuracy_takes_the_lowest_id():
    head = head_of()
    model = model_with(head, SoftmaxCrossentropy(), metrics=["accuracy"])
    best = oracle.logits(X, *weights_of(head)).argmax(axis=1)
    higher = np.stack([np.maximum(best, 1), np.maximum(best, 1) - 1], axis=1)
    half = np.full((N, 2), 0.5, "float32")
    assert model.evaluate(X, (higher, half), verbose=0)[1] == np.mean(best == higher[:, 1])


# Errors

BAD_ARGUMENTS = {
    "of the wrong kind": (
        lambda: SoftmaxCrossentropy(remaining="drop"),
        ValueError,
        "remaining must be",
    ),
    "of candidates": (
        lambda: tlo.losses.SampledSoftmax(remaining="spread"),
        TypeError,
        "remaining must be left out of SampledSoftmax.*SoftmaxCrossentropy has it",
    ),
    "of a head without the mean": (
        lambda: SoftmaxCrossentropy(remaining="spread")(
            (IDS, P),
            tlo.heads.SampledHead(CLASSES, tlo.samplers.Uniform(3), tlo.optimizers.RowSGD(0.1))(
                X, training=True
            ),
        ),
        TypeError,
        "remaining='spread' takes the mean of all logits",
    ),
    "of a sum over labels": (
        lambda: tlo.losses.SampledLogistic()((IDS, P), head_of()(X)),
        TypeError,
        "SampledLogistic must get integer class ids.*Losses to which they do: ActiveSetSoftmax",
    ),
    "of TensorFlow's": (
        lambda: tlo.losses.TFCandidateSamplingLoss()((IDS, P), head_of()(X)),
        TypeError,
        "TFCandidateSamplingLoss must get integer class ids",
    ),
    "other keys": (
        lambda: SoftmaxCrossentropy()({"ids": IDS, "p": P}, head_of()(X)),
        TypeError,
        r"must be 'ids' and 'probabilities'; got \['ids', 'p'\]",
    ),
    "another metric of Keras's": (
        lambda: model_with(head_of(), SoftmaxCrossentropy(), metrics=["mse"]).evaluate(
            X, (IDS, P), verbose=0
        ),
        TypeError,
        "must get labels without values; got soft labels",
    ),
    "ragged and dense": (
        lambda: SoftmaxCrossentropy()((ragged(IDS, tf.int64), P), head_of()(X)),
        ValueError,
        "same form and shape; got a RaggedTensor .* and a dense tensor",
    ),
    "other rows": (
        lambda: SoftmaxCrossentropy()(
            (tf.ragged.constant([[1], [2, 3]]), tf.ragged.constant([[0.5, 0.1], [0.2]])),
            head_of()(X[:2]),
        ),
        tf.errors.InvalidArgumentError,
        "same form and shape, row by row",
    ),
    "Hessian-free training": (
        lambda: tlo.hessian_free.Trainer().fit(
            model_with(head_of(), SoftmaxCrossentropy()), X, (IDS, P)
        ),
        TypeError,
        "y must be a dense array .* got a pair or a dict, such as soft labels",
    ),
    "Hessian-free training on sparse targets": (
        lambda: tlo.hessian_free.Trainer().fit(
            model_with(head_of(), SoftmaxCrossentropy()), X, targets_of_columns()
        ),
        TypeError,
        "y must be",
    ),
    "the comparison": (
        lambda: tlo.compare_heads(
            model_with(keras.layers.Dense(CLASSES), "sparse_categorical_crossentropy"),
            (X, (IDS, P)),
            (X, IDS[:, 0]),
            seconds=1,
        ),
        TypeError,
        "train: labels must be class ids; got soft labels",
    ),
    "choose_num_sampled": (
        lambda: tlo.choose_num_sampled(
            model_with(
                tlo.heads.SampledHead(CLASSES, tlo.samplers.Uniform(3), tlo.optimizers.RowSGD(0.1)),
                tlo.losses.SampledSoftmax(),
            ),
            X,
            (IDS, P),
            tolerance=0.3,
        ),
        TypeError,
        "choose_num_sampled needs class ids as labels; got labels with values",
    ),
    "another weight for each part": (
        lambda: model_with(head_of(), SoftmaxCrossentropy()).fit(
            X, (IDS, P), sample_weight=(np.ones(N), np.zeros(N)), verbose=0
        ),
        tf.errors.InvalidArgumentError,
        "sample_weight must be that of the examples",
    ),
}


@pytest.mark.all_cases
@pytest.mark.parametrize("name", list(BAD_ARGUMENTS))
def test_what_is_refused(name):
    act, error, message = BAD_ARGUMENTS[name]
    with pytest.raises(error, match=f"(?s){message}"):
        act()
