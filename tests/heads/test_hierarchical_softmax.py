# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from heads.taken_step import take_step
from oracles import hierarchical_softmax as oracle
from variants import cases_of, each_once, product

import tfx_largeout as tlo
from tfx_largeout.class_trees import (
    equal_clusters,
    frequency_clusters,
    huffman_code_lengths,
    sweep,
)
from tfx_largeout.labels import normalize_labels
from tfx_largeout.optimizers import RowAdagrad, RowAdam, RowSGD
from tfx_largeout.statistics import ExactStatistics

CLASSES, WIDTH, BATCH = 40, 6, 9
COUNTS = np.random.default_rng(5).integers(1, 1000, CLASSES)
CLUSTERS = np.random.default_rng(6).permutation(np.arange(CLASSES) % 7)

TREES = {
    "equal clusters": {},
    "frequency clusters": {"counts": COUNTS},
    "given clusters": {"clusters": CLUSTERS},
    "balanced": {"tree": "huffman"},
    "huffman": {"tree": "huffman", "counts": COUNTS},
    "deep": {"tree": "huffman", "counts": 2.0 ** -np.arange(CLASSES)},
}
every_tree = cases_of("tree", list(TREES))


def make_head(tree, optimizer=None, **arguments):
    head = tlo.heads.HierarchicalSoftmaxHead(
        CLASSES,
        optimizer or RowSGD(0.25),
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.7, seed=1),
        bias_initializer=keras.initializers.RandomNormal(stddev=0.7, seed=2),
        **{**TREES[tree], **arguments},
    )
    head.build((None, WIDTH))
    return head


def hidden_and_labels(seed=0):
    """Up to three labels per example, one in example 1, with some in one cluster."""
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.choice(CLASSES, 3, replace=False) for _ in range(BATCH)])
    labels[1, 1:] = -1
    labels[2, 0] = -1
    labels[3] = [0, 1, 2]
    return rng.normal(size=(BATCH, WIDTH)).astype("float32"), labels


def arrays(head, name):
    return [None if w is None else keras.ops.convert_to_numpy(w) for w in head.tables[name]]


class Oracle:
    """The head in float64, with plain SGD."""

    def __init__(self, tree, head):
        arguments = TREES[tree]
        if arguments.get("tree") == "huffman":
            counts = arguments.get("counts", np.ones(CLASSES))
            self.names, self.shape = ["node"], huffman_code_lengths(counts)
            self.functions = oracle.binary_tree, oracle.binary_tree_gradient
        else:
            self.names = ["class", "cluster"]
            self.functions = oracle.two_level, oracle.two_level_gradients
            if "clusters" in arguments:
                self.shape = arguments["clusters"]
            elif "counts" in arguments:
                self.shape = frequency_clusters(arguments["counts"])
            else:
                self.shape = equal_clusters(CLASSES)
        self.weights = [
            w if w is None else w.astype(np.float64)
            for name in self.names
            for w in arrays(head, name)
        ]

    def log_probabilities(self, hidden):
        return self.functions[0](hidden, *self.weights, self.shape)

    def step(self, hidden, labels, weights, rate):
        """Takes a step on the mean of weight times loss; returns the gradient of hidden."""
        targets = np.zeros((len(hidden), CLASSES))
        for i, row in enumerate(labels):
            own = row[row >= 0]
            targets[i, own] = -weights[i] / len(own) / len(hidden)
        gradients = self.functions[1](hidden, *self.weights, self.shape, targets)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        hidden_gradient = sum(
            gradient @ self.weights[2 * i] for i, gradient in enumerate(gradients)
        )
        for i, gradient in enumerate(gradients):
            self.weights[2 * i] -= rate * gradient.T @ hidden
            if self.weights[2 * i + 1] is not None:
                self.weights[2 * i + 1] -= rate * gradient.sum(axis=0)
        return hidden_gradient


# The oracle


@every_tree
def test_the_oracle_gives_a_distribution(tree):
    hidden, _ = hidden_and_labels()
    values = Oracle(tree, make_head(tree)).log_probabilities(hidden)
    np.testing.assert_allclose(np.exp(values).sum(axis=1), 1, rtol=1e-12)


@every_tree
def test_the_oracles_gradient_is_that_of_its_log_probabilities(tree):
    hidden, labels = hidden_and_labels()
    hidden = hidden.astype(np.float64)
    rng = np.random.default_rng(3)

    def loss(hidden):
        values = model.log_probabilities(hidden)
        return -np.mean([values[i, row[row >= 0]].mean() for i, row in enumerate(labels)])

    for _ in range(3):
        model = Oracle(tree, make_head(tree))
        before = [None if w is None else w.copy() for w in model.weights]
        gradient = model.step(hidden, labels, np.ones(BATCH), 1.0)
        steps = [None if w is None else b - w for b, w in zip(before, model.weights, strict=True)]
        moves = [None if w is None else rng.normal(size=w.shape) for w in before]
        hidden_move = rng.normal(size=hidden.shape)
        expected = (gradient * hidden_move).sum()
        expected += sum((s * m).sum() for s, m in zip(steps, moves, strict=True) if s is not None)
        sides = []
        for sign in (1e-5, -1e-5):
            model.weights = [
                None if b is None else b + sign * m for b, m in zip(before, moves, strict=True)
            ]
            sides.append(loss(hidden + sign * hidden_move))
        assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(expected, rel=1e-6)


def test_the_oracles_paths_are_those_of_its_recursion():
    hidden, _ = hidden_and_labels()
    head = make_head("huffman")
    lengths = huffman_code_lengths(COUNTS)
    kernel, bias = arrays(head, "node")
    margins = oracle.scores(hidden, kernel, bias)
    for c, (nodes, signs) in enumerate(oracle.paths(lengths)):
        assert len(nodes) == lengths[c]
        np.testing.assert_allclose(
            oracle.log_sigmoid(margins[:, nodes] * signs).sum(axis=1),
            oracle.binary_tree(hidden, kernel, bias, lengths)[:, c],
        )


# Training


@pytest.mark.parametrize(
    ("tree", "use_bias", "dtype"), product(list(TREES), [True, False], ["float32", "float64"])
)
def test_steps_equal_those_of_the_oracle(tree, use_bias, dtype):
    head = make_head(tree, use_bias=use_bias, dtype=dtype)
    model = Oracle(tree, head)
    loss = tlo.losses.NegativeLogLikelihood(dtype=dtype)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == "float32" else {"rtol": 1e-10}
    step = tf.function(lambda h, y, w: take_step(head, loss, h, y, w)[1], autograph=False)
    for seed in range(6):
        hidden, labels = hidden_and_labels(seed)
        weights = np.random.default_rng(seed).uniform(0, 2, BATCH)
        gradient = step(tf.constant(hidden, dtype), labels, tf.constant(weights, dtype))
        expected = model.step(hidden.astype(np.float64), labels, weights, 0.25)
        np.testing.assert_allclose(gradient, expected, **tolerance)
    values = [w for name in model.names for w in arrays(head, name)]
    for value, expected in zip(values, model.weights, strict=True):
        if expected is not None:
            np.testing.assert_allclose(value, expected, **tolerance)
    assert int(head.optimizer.iterations) == 6


@every_tree
def test_only_the_rows_that_a_label_needs_are_touched(tree):
    head = make_head(tree, RowAdam(0.1))
    model = Oracle(tree, head)
    before = {name: arrays(head, name) for name in head.tables}
    label, hidden = 11, tf.ones((1, WIDTH))
    take_step(head, tlo.losses.NegativeLogLikelihood(), hidden, [label])
    if model.names == ["node"]:
        expected = {"node": oracle.paths(model.shape)[label][0]}
    else:
        order = np.argsort(model.shape, kind="stable")
        members = np.flatnonzero(model.shape[order] == model.shape[label])
        expected = {"class": members, "cluster": np.arange(model.shape.max() + 1)}
    for name, rows in expected.items():
        for old, new in zip(before[name], arrays(head, name), strict=True):
            changed = np.flatnonzero(np.any(np.reshape(old != new, (len(old), -1)), axis=1))
            # A cluster of one class has nothing to learn, but is touched.
            assert set(changed) <= set(rows)
            assert len(changed) == len(rows) or len(rows) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("tree", ["frequency clusters", "huffman"])
def test_training_twice_gives_the_same_bits(tree):
    def train():
        head = make_head(tree, RowAdagrad(0.1))
        model = keras.Sequential([keras.Input((WIDTH,)), head])
        model.compile("sgd", loss=tlo.losses.NegativeLogLikelihood())
        hidden, labels = hidden_and_labels()
        model.fit(hidden, labels, epochs=5, shuffle=False, verbose=0)
        return [w for name in head.tables for w in arrays(head, name)]

    for left, right in zip(train(), train(), strict=True):
        np.testing.assert_array_equal(left, right)


@every_tree
@pytest.mark.parametrize("what", ["hidden", "weight"])
def test_nan_is_refused_and_changes_nothing(tree, what):
    head = make_head(tree, RowAdagrad(0.1))
    loss = tlo.losses.NegativeLogLikelihood()
    hidden, labels = hidden_and_labels()
    weights = np.ones(BATCH, "float32")
    (hidden[0] if what == "hidden" else weights)[0] = np.nan
    before = [keras.ops.convert_to_numpy(v) for v in head.variables + head.optimizer.variables]
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be finite; got"):
        take_step(head, loss, tf.constant(hidden), labels, weights)
    after = [keras.ops.convert_to_numpy(v) for v in head.variables + head.optimizer.variables]
    for left, right in zip(before, after, strict=True):
        np.testing.assert_array_equal(left, right)


@every_tree
def test_huge_logits_give_the_losses_and_gradients_of_the_definition(tree):
    head = make_head(tree)
    for name in head.tables:
        head.tables[name].kernel.assign(1e4 * head.tables[name].kernel.value)
    hidden, labels = hidden_and_labels()
    exact, loss = Oracle(tree, head), tlo.losses.NegativeLogLikelihood()
    log_p = exact.log_probabilities(np.float64(hidden))
    expected = [-log_p[i, row[row >= 0]].mean() for i, row in enumerate(labels)]
    value, gradient = take_step(head, loss, tf.constant(hidden), labels)
    np.testing.assert_allclose(value, np.mean(expected), rtol=1e-5)
    wanted = exact.step(np.float64(hidden), labels, np.ones(BATCH), 0.25)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-3)


@pytest.fixture
def count_blocks(monkeypatch):
    """A list that grows when a block of a sweep over all classes is really computed."""
    blocks = []

    def count(values):
        blocks.append(values.shape)
        return values

    for tree in ("equal clusters", "huffman"):
        head = make_head(tree)
        kind = type(head.class_tree.sweep(head.tables, tf.ones((1, WIDTH))))

        def block(self, place, plain=kind.block):
            place, classes, values = plain(self, place)
            counted = tf.numpy_function(count, [values], values.dtype, stateful=False)
            return place, classes, tf.ensure_shape(counted, values.shape)

        monkeypatch.setattr(kind, "block", block)
    return blocks


@pytest.mark.thorough
@pytest.mark.parametrize("tree", ["frequency clusters", "huffman"])
def test_neither_a_training_step_nor_the_exact_loss_sweeps_over_all_classes(tree, count_blocks):
    head = make_head(tree)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), head])
    model.compile("sgd", loss=tlo.losses.NegativeLogLikelihood())
    hidden, labels = hidden_and_labels()
    model.fit(hidden, labels, verbose=0)
    model.evaluate(hidden, labels, verbose=0)
    assert count_blocks == []
    model.predict(hidden, verbose=0)
    assert count_blocks != []  # the counter does count
    count_blocks.clear()
    model.compile("sgd", loss=model.loss, metrics=[tlo.metrics.PrecisionAtK(1)])
    model.evaluate(hidden, labels, verbose=0)
    assert count_blocks != []


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("tree", ["equal clusters", "huffman"])
@pytest.mark.parametrize(
    ("training", "error", "message"),
    [
        (None, TypeError, "is trained by losses .* such as NegativeLogLikelihood"),
        (False, LookupError, "train it with NegativeLogLikelihood"),
    ],
    ids=["in training", "elsewhere"],
)
def test_all_log_probabilities_have_no_gradient_and_say_so(
    tree, in_graph, training, error, message
):
    head = make_head(tree)

    def gradient(hidden):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            value = tf.reduce_sum(head(hidden, training=training))
        return tape.gradient(value, hidden)

    run = tf.function(gradient, autograph=False) if in_graph else gradient
    with pytest.raises(error, match=message):
        run(tf.ones((2, WIDTH)))


# Evaluation


def rank_and_top(head, hidden, labels, k):
    def run(hidden):
        own = normalize_labels(labels, CLASSES, [len(labels)])
        top = head.top_k(hidden, k)
        exact = head.statistics(ExactStatistics, hidden, own, training=False)
        return head(hidden), exact[1:], top.scores, top.ids, top.log_partition

    return run(hidden), tf.function(run, autograph=False)(hidden)


@pytest.mark.parametrize(
    ("tree", "block_and_k"),
    product(list(TREES), [(2**14, 0), (2**14, 5), (8, 1), (8, CLASSES), (1, 5)]),
)
def test_ranks_and_best_classes_are_exact(tree, block_and_k, monkeypatch):
    block, k = block_and_k
    monkeypatch.setattr(sweep, "_BLOCK_CLASSES", block)
    head = make_head(tree)
    hidden, labels = hidden_and_labels()
    expected = Oracle(tree, head).log_probabilities(hidden)
    order = np.argsort(-expected, axis=1, kind="stable")
    ranks = np.take_along_axis(np.argsort(order, axis=1), np.maximum(labels, 0), 1)
    for logits, exact, scores, ids, log_partition in rank_and_top(head, hidden, labels, k):
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
        target_logits, partition, target_ranks = exact
        own = np.take_along_axis(expected, np.maximum(labels, 0), 1)
        np.testing.assert_allclose(target_logits, np.where(labels < 0, 0, own), rtol=1e-4)
        np.testing.assert_array_equal(partition, np.zeros(BATCH))
        np.testing.assert_array_equal(target_ranks, np.where(labels < 0, -1, ranks))
        np.testing.assert_array_equal(ids, order[:, :k])
        best = np.take_along_axis(expected, order[:, :k], 1)
        np.testing.assert_allclose(scores, best, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(log_partition, np.zeros(BATCH))


@pytest.mark.parametrize(("tree", "block"), each_once(list(TREES), [2**14, 3]))
def test_ties_go_to_the_lower_id(tree, block, monkeypatch):
    monkeypatch.setattr(sweep, "_BLOCK_CLASSES", block)
    head = make_head(tree, use_bias=False)
    for table in head.tables.values():
        table.kernel.assign(np.zeros(table.kernel.shape))
    labels = np.arange(CLASSES)[:, np.newaxis]
    hidden = np.ones((CLASSES, WIDTH), "float32")
    for logits, (_, _, ranks), _, ids, _ in rank_and_top(head, hidden, labels, CLASSES):
        order = np.argsort(-logits.numpy()[0], kind="stable")
        np.testing.assert_array_equal(ids[0], order)
        np.testing.assert_array_equal(ranks[:, 0], np.argsort(order))


def test_best_classes_skip_clusters_that_are_out_of_reach(monkeypatch):
    monkeypatch.setattr(sweep, "_BLOCK_CLASSES", 1)  # a block is a cluster
    head = make_head("given clusters")
    bias = np.zeros(7)
    bias[[4, 2]] = 50, 40
    head.tables["cluster"].bias.assign(bias)
    blocks = []
    cluster_sweep = type(head.class_tree.sweep(head.tables, tf.ones((1, WIDTH))))
    plain = cluster_sweep.block
    monkeypatch.setattr(
        cluster_sweep, "block", lambda self, place: blocks.append(place) or plain(self, place)
    )
    hidden = np.ones((1, WIDTH), "float32")
    ids = head.top_k(tf.constant(hidden), 3).ids
    assert len(blocks) == 1  # cluster 4 has 5 classes
    blocks.clear()
    head.top_k(tf.constant(hidden), 8)
    assert len(blocks) == 2
    expected = np.argsort(-head(hidden).numpy()[0], kind="stable")[:3]
    np.testing.assert_array_equal(ids[0], expected)


@pytest.mark.thorough
@every_tree
def test_no_examples(tree):
    head = make_head(tree)
    hidden, labels = np.zeros((0, WIDTH), "float32"), np.zeros((0, 2), int)
    for logits, (targets, _, ranks), scores, ids, _ in rank_and_top(head, hidden, labels, 3):
        assert logits.shape == (0, CLASSES)
        assert targets.shape == ranks.shape == (0, 2)
        assert scores.shape == ids.shape == (0, 3)


def test_the_loss_is_the_same_number_in_training_and_evaluation():
    hidden, labels = hidden_and_labels()
    head, loss = make_head("huffman"), tlo.losses.NegativeLogLikelihood()
    np.testing.assert_allclose(
        loss(labels, head(hidden, training=True)), loss(labels, head(hidden, training=False))
    )


# Saving


@pytest.mark.thorough
@pytest.mark.parametrize(("tree", "optimizer"), each_once(list(TREES), [RowAdam, RowAdagrad]))
def test_a_saved_model_trains_on_as_if_it_had_not_been_saved(tree, optimizer, tmp_path):
    inputs = keras.Input((WIDTH,))
    head = tlo.heads.HierarchicalSoftmaxHead(CLASSES, optimizer(0.1), **TREES[tree])
    model = keras.Model(inputs, head(keras.layers.Dense(WIDTH)(inputs)))
    model.compile("adam", loss=tlo.losses.NegativeLogLikelihood())
    hidden, labels = hidden_and_labels()
    model.fit(hidden, labels, epochs=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        each.fit(hidden, labels, epochs=2, shuffle=False, verbose=0)
    results = [each.predict(hidden, verbose=0) for each in (model, loaded)]
    np.testing.assert_array_equal(*results)


def test_a_million_counts_make_a_small_configuration():
    counts = np.random.default_rng(0).zipf(1.5, 10**6).clip(1, 10**6)
    head = tlo.heads.HierarchicalSoftmaxHead(10**6, RowSGD(0.1), tree="huffman", counts=counts)
    config = head.get_config()
    assert len(config["counts"]) < 2e6
    again = tlo.heads.HierarchicalSoftmaxHead.from_config(config)
    assert again.get_config() == config


@pytest.mark.parametrize("tree", ["two_level", "huffman"])
def test_a_class_of_count_0_is_in_the_tree(tree):
    counts = np.append(np.arange(CLASSES - 1) % 7, 50)
    head = tlo.heads.HierarchicalSoftmaxHead(CLASSES, RowSGD(0.1), tree=tree, counts=counts)
    probabilities = np.exp(head(np.ones([2, 3], "float32"), training=False))
    assert probabilities.min() > 0
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    again = tlo.heads.HierarchicalSoftmaxHead.from_config(head.get_config())
    assert again.get_config() == head.get_config()


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tree": "binary"}, r"tree must be one of 'two_level', 'huffman'; got 'binary'"),
        ({"counts": np.ones(3)}, "counts must have one entry for each of the 40 classes; got 3"),
        ({"counts": np.ones((40, 1))}, r"counts must have shape"),
        ({"counts": -np.arange(40)}, "counts must be finite and at least 0 .* got -1 for class 1"),
        ({"counts": [1.0] * 39 + [-2.5]}, "at least 0 .* got -2.5 for class 39"),
        ({"counts": [1.0] * 39 + [np.nan]}, "finite .* got nan for class 39"),
        ({"counts": [np.inf] * 40}, "finite .* got inf for class 0"),
        ({"counts": ["a"] * 40}, "counts must be numbers; got dtype"),
        ({"clusters": [0, 1]}, r"clusters must have shape \[C\] = \[40\]; got \(2,\)"),
        ({"clusters": np.zeros(40)}, "clusters must be integers; got dtype float64"),
        ({"clusters": np.arange(40) - 1}, "at least 0 and below .* 40; got -1 for class 0"),
        ({"clusters": np.arange(40) + 1}, "at least 0 and below .* 40; got 40 for class 39"),
        ({"clusters": 2 * (np.arange(40) % 5)}, "without gaps; got 9 of them, of which 1 is empty"),
        ({"clusters": np.arange(40), "counts": np.ones(40)}, "clusters must be None where counts"),
        ({"clusters": np.arange(40), "tree": "huffman"}, "unless tree is 'two_level'"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        tlo.heads.HierarchicalSoftmaxHead(CLASSES, RowSGD(0.1), **arguments)


def test_the_optimizer_is_checked():
    with pytest.raises(TypeError, match="optimizer must be a RowOptimizer; got 'sgd'"):
        tlo.heads.HierarchicalSoftmaxHead(CLASSES, "sgd")
    optimizer = RowSGD(0.1)
    make_head("huffman", optimizer)
    with pytest.raises(ValueError, match="serves no other layer or model yet"):
        make_head("huffman", optimizer)


def test_the_width_must_be_known():
    head = tlo.heads.HierarchicalSoftmaxHead(CLASSES, RowSGD(0.1))
    with pytest.raises(ValueError, match="last dimension of the hidden activations must be known"):
        head.build((None, None))
