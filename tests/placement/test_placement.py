# SPDX-License-Identifier: Apache-2.0
"""On a GPU machine only the ops listed here run on the host. Needs no GPU.

Compared with TensorFlow's registry of kernels are the graphs that a GPU machine would trace: those
without the custom ops, which have no GPU kernels.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance.heads_table import HEADS
from distribute.test_order_of_a_step import OneOfTwo
from placement.gpu_kernels import count_waits, host_nodes, host_variables, nodes_of
from samplers import samplers_table
from samplers.drawing import labels_of, weights_of
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout.distribute.workers import ALONE, set_current
from tfx_largeout.ops.checks import check_finite
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update import row_update
from tfx_largeout.run_time_checks import after

CLASSES, WIDTH, EXAMPLES = 1009, 16, 8  # no other size is a multiple of CLASSES

# Ops without a GPU kernel, by file and op: the reason, and how much is copied to the host and back.
ON_HOST = {
    ("bucket_candidates.py", "StatelessShuffle"): "the order of tables: L numbers",
    ("model_rate.py", "PyFunc"): "a warning, in a branch for steps that give cause; two booleans",
    ("step_context.py", "PyFunc"): "a warning, in a branch for loops that leave out the step",
    ("tf_candidate_sampling.py", "LogUniformCandidateSampler"): "tf.nn's own; B labels and S ids",
    ("tf_candidate_sampling.py", "UniformCandidateSampler"): "tf.nn's own; B labels and S ids",
    ("tf_candidate_sampling.py", "ComputeAccidentalHits"): "tf.nn's own; B labels and S ids",
}
# Of samplers by themselves.
DRAWN_ON_HOST = {
    ("bernoulli.py", "StatelessRandomPoisson"): "how many candidates: a number, or one an example",
    ("distinct_arrivals.py", "StatelessRandomPoisson"): "how many there are of a class: a number",
}
# Of several workers.
OF_WORKERS = {
    ("class_rows.py", "Pad"): "ranks: what is sent goes through the host",
    ("class_rows.py", "PadV2"): "the best ids: what is sent goes through the host",
    ("class_rows.py", "PyFuncStateless"): "an error, where logits are read that no worker has",
    ("global_batch.py", "PadV2"): "labels, which are there",
    ("row_routes.py", "UnsortedSegmentSum"): "of labels, which are there",
}
# The variables that must stay, by head: how many, and why. All are numbers.
VARIABLES_ON_HOST = {"sampled_index": (1, "the clock of the index says what is to be launched")}

# The largest number of nodes of a training step for which the host waits, with several labels per
# example. They may become fewer, not more.
WAITS = {
    "dense": {"Where": 0, "If": 0, "While": 0},
    "dense_cosine": {"Where": 1, "If": 0, "While": 0},
    "tf_sampled_softmax": {"Where": 0, "If": 0, "While": 0},
    "tf_nce": {"Where": 0, "If": 0, "While": 0},
    "factored": {"Where": 10, "If": 23, "While": 2},
    "hierarchical_two_level": {"Where": 12, "If": 16, "While": 6},
    "hierarchical_huffman": {"Where": 6, "If": 11, "While": 5},
    "sampled": {"Where": 8, "If": 7, "While": 2},
    "sampled_cosine": {"Where": 8, "If": 7, "While": 2},
    "sampled_per_example": {"Where": 6, "If": 7, "While": 3},
    "sampled_in_batch": {"Where": 15, "If": 8, "While": 2},
    "sampled_exact_softmax": {"Where": 7, "If": 8, "While": 8},
    "sampled_midx": {"Where": 7, "If": 19, "While": 19},
    "sampled_index": {"Where": 17, "If": 29, "While": 8, "Assert": 2},
    "exact_softmax": {"Where": 7, "If": 9, "While": 4},
    "exact_softmax_cosine": {"Where": 9, "If": 10, "While": 4},
    "exact_softmax_all": {"Where": 0, "If": 9, "While": 5},
}

ROWS = {row.name: row for row in HEADS if not row.name.endswith("_smoothed") and not row.is_tied}


@pytest.fixture(autouse=True)
def as_on_a_gpu_machine(monkeypatch):
    monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", "1")


@functools.cache
def graphs(name, over_workers=False):
    """The graphs of a training step, of evaluation, and of the best classes."""
    row = ROWS[name]
    head = row.make_head(CLASSES)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), head])
    optimizer = tlo.distribute.DataParallel("sgd") if over_workers else row.make_optimizer()
    model.compile(optimizer, loss=row.make_loss())
    model.optimizer.build(model.trainable_variables)
    x = tf.zeros([EXAMPLES, WIDTH])
    labels = np.arange(2 * EXAMPLES).reshape(EXAMPLES, 2)
    labels[0, 1] = -1

    def train(x, y):
        return model.train_step((x, y))

    def evaluate(x, y):
        return model.test_step((x, y))

    def best(x):
        return head.top_k(x, 5).ids

    batch = x, tf.constant(labels)
    return {
        "training": tf.function(train).get_concrete_function(*batch).graph,
        "evaluation": tf.function(evaluate).get_concrete_function(*batch).graph,
        "top-k": tf.function(best).get_concrete_function(x).graph,
    }


@cases_of("name", list(ROWS))
def test_nothing_is_left_to_the_host_but_what_is_named_and_waits_are_few(name):
    for graph in graphs(name).values():
        nodes, variables = host_nodes(graph), host_variables(graph)
        assert all(variable.shapes == (tf.TensorShape([]),) for variable in variables)
        assert len(variables) <= VARIABLES_ON_HOST.get(name, (0, ""))[0]
        assert [node for node in nodes if (node.place, node.op) not in ON_HOST] == []
        for node in nodes:
            assert not any(CLASSES in (shape.dims or []) for shape in node.shapes), node
    waits = count_waits(graphs(name)["training"])
    assert {kind: n for kind, n in waits.items() if n > WAITS[name].get(kind, 0)} == {}


# As `WAITS`, over workers. The `Assert` is in a branch for every hundredth step.
WAITS_OF_WORKERS = {
    "dense": {"Assert": 1, "Where": 0, "If": 2, "While": 0},
    "sampled": {"Assert": 1, "Where": 10, "If": 9, "While": 2},
    "sampled_per_example": {"Assert": 1, "Where": 6, "If": 9, "While": 3},
    "exact_softmax": {"Assert": 1, "Where": 7, "If": 11, "While": 4},
    "factored": {"Assert": 2, "Where": 3, "If": 25, "While": 2},
}


@cases_of("name", list(WAITS_OF_WORKERS))
def test_over_workers_no_more_is_left_to_the_host(name):
    set_current(OneOfTwo())
    try:
        found = graphs(name, over_workers=True)
    finally:
        set_current(ALONE)
    for graph in found.values():
        assert host_variables(graph) == []
        there = {(node.place, node.op) for node in host_nodes(graph)}
        assert there <= {*ON_HOST, *OF_WORKERS}
    waits = count_waits(found["training"])
    assert {kind: n for kind, n in waits.items() if n > WAITS_OF_WORKERS[name][kind]} == {}


@pytest.mark.thorough
def test_what_is_named_is_there():
    """Finds names that are no longer needed."""
    rows = "sampled_index", "tf_sampled_softmax", "tf_nce"
    found = {(n.place, n.op) for name in rows for g in graphs(name).values() for n in host_nodes(g)}
    assert set(ON_HOST) <= found
    graphs_of_index = graphs("sampled_index")
    assert any(host_variables(graph) for graph in graphs_of_index.values())


@cases_of("row", samplers_table.SAMPLERS)
def test_samplers_could_draw_on_the_gpu(row):
    sampler = samplers_table.built(row)

    @tf.function
    def draw(hidden):
        labels, seed = labels_of([[1, -1], [2, 3]]), tf.constant([1, 2])
        return sampler.sample(hidden, labels, seed, weights_of(sampler))

    graph = draw.get_concrete_function(tf.zeros([2, 3])).graph
    nodes = host_nodes(graph)
    assert [node for node in nodes if (node.place, node.op) not in DRAWN_ON_HOST] == []
    for node in nodes:
        assert not any(samplers_table.CLASSES in (shape.dims or []) for shape in node.shapes), node
    assert host_variables(graph) == []


# The checker can fail


def graph_of(function, *arguments):
    return tf.function(function, autograph=False).get_concrete_function(*arguments).graph


def test_a_node_in_a_function_of_a_function_is_found():
    def inner(x):
        return tf.cond(x > 0, lambda: tf.ragged.range(x).values, lambda: tf.zeros([0], tf.int64))

    graph = graph_of(tf.function(inner), tf.constant(3, tf.int64))
    assert [node.op for node in host_nodes(graph)] == ["RaggedRange"]


def test_a_kernel_of_another_dtype_does_not_count():
    as_float = graph_of(lambda x: tf.pad(x, [[0, 1]]), tf.zeros([3]))
    as_int64 = graph_of(lambda x: tf.pad(x, [[0, 1]]), tf.zeros([3], tf.int64))
    assert host_nodes(as_float) == []
    assert [(node.op, node.shapes[0]) for node in host_nodes(as_int64)] == [("Pad", [3])]


def test_a_custom_op_is_found(monkeypatch):
    monkeypatch.delenv("TFX_LARGEOUT_FORCE_FALLBACK")
    weights = tf.Variable(tf.zeros([CLASSES, 2]))

    def step(ids):
        rule = RowRule("sgd", (0.0, 0.0))
        row_update(weights, [], ids, tf.ones([1, 2]), rule, 0.1, implementation="op")

    (node,) = host_nodes(graph_of(step, tf.constant([3], tf.int64)))
    assert (node.op, node.place) == ("TfxRowUpdate", "row_update.py")


@pytest.mark.parametrize(("dtype", "stays"), [("int32", True), ("uint32", False), ("int64", False)])
def test_a_variable_that_a_gpu_can_not_have_is_found(dtype, stays):
    ages = tf.Variable(tf.zeros([CLASSES], dtype))
    gather = functools.partial(tf.raw_ops.ResourceGather, indices=[0], dtype=dtype)
    graph = graph_of(lambda: gather(resource=ages.handle))
    assert [list(variable.shapes) for variable in host_variables(graph)] == [[[CLASSES]]] * stays
    assert [node.op for node in host_nodes(graph)] == ["ResourceGather"] * stays


def test_what_a_step_waits_for_is_counted():
    def by_hand(x):
        tf.debugging.Assert(tf.reduce_all(x > 0), [x])
        return tf.where(x > 1)

    def by_checks(x):
        with after([check_finite("x", x), check_finite("y", x)]):
            return tf.identity(x)

    x = tf.ones([3])
    assert count_waits(graph_of(by_hand, x)) == {"Assert": 1, "Where": 1, "If": 1, "While": 0}
    assert count_waits(graph_of(by_checks, x)) == {"Assert": 0, "Where": 0, "If": 1, "While": 0}
    assert [node.type for node in nodes_of(graph_of(by_checks, x))].count("Assert") == 2


INDEXES = {
    "hash": lambda: tlo.indexes.HashIndex(tlo.indexes.WTAHash(), num_tables=3, first_period=2),
    "inner_product": lambda: tlo.indexes.HashIndex(
        tlo.indexes.SimHash(), num_tables=3, similarity="inner_product", max_drift=0.1
    ),
    "midx": lambda: tlo.indexes.InvertedMultiIndex(4),
    "midx_rounds": lambda: tlo.indexes.InvertedMultiIndex(4, codebook_rounds=3),
}


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_follow_w_on_the_gpu(name):
    index, kernel = INDEXES[name](), tf.Variable(np.eye(CLASSES, WIDTH, dtype=np.float32) + 1)
    index.rebuild(kernel)

    @tf.function
    def update(touched):
        index.update(kernel, None, touched)

    graphs = [
        update.get_concrete_function(tf.TensorSpec([None], tf.int64)).graph,
        tf.function(lambda: index.rebuild(kernel)).get_concrete_function().graph,
    ]
    nodes = [node for graph in graphs for node in host_nodes(graph)]
    assert [node for node in nodes if (node.place, node.op) not in ON_HOST] == []


TIED = {
    "sampled": (
        lambda table: tlo.heads.TiedSampledHead(table, tlo.samplers.Uniform(20)),
        tlo.losses.ComplementarySum,
    ),
    "exact_softmax": (tlo.heads.TiedExactSoftmaxHead, tlo.losses.SoftmaxCrossentropy),
    "exact_softmax_all": (
        lambda table: tlo.heads.TiedExactSoftmaxHead(table, backward="all"),
        tlo.losses.SoftmaxCrossentropy,
    ),
}


@pytest.mark.parametrize("name", TIED)
def test_a_table_that_input_and_output_share_is_on_the_gpu(name):
    words = keras.Input([4], dtype="int32")
    table = tlo.layers.RowEmbedding(CLASSES, WIDTH)
    head = TIED[name][0](table)
    model = keras.Model(words, head(keras.layers.Flatten()(table(words)[:, :1])))
    model.compile(tlo.optimizers.RowAdam(0.1), TIED[name][1]())
    model.optimizer.build(model.trainable_variables)
    batch = tf.zeros([EXAMPLES, 4], tf.int32), tf.zeros([EXAMPLES], tf.int64)
    for step in (model.train_step, model.test_step):
        graph = (
            tf.function(lambda x, y, step=step: step((x, y))).get_concrete_function(*batch).graph
        )
        nodes = host_nodes(graph)
        assert [node for node in nodes if (node.place, node.op) not in ON_HOST] == []
        assert not host_variables(graph)
