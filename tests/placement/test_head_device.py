# SPDX-License-Identifier: Apache-2.0
"""A head on the host with a trunk on another device: a second CPU device replaces the GPU."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from child import run_program

import tfx_largeout as tlo

pytestmark = pytest.mark.cpu

# Prints nodes of the head that are not on CPU:0 while the rest is placed on CPU:1, and losses.
PROGRAM = """
import json, sys
import keras, numpy as np, tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], 2 * [tf.config.LogicalDeviceConfiguration()])
import tfx_largeout as tlo
C, D, N = 4013, 16, 8
def uniform(): return tlo.samplers.Uniform(20)
HEADS = {
    "sampled": (lambda **kw: tlo.heads.SampledHead(
        C, uniform(), tlo.optimizers.RowAdam(0.05), seed=1, **kw), tlo.losses.ComplementarySum),
    "per_example": (lambda **kw: tlo.heads.SampledHead(
        C, tlo.samplers.LogUniform(9, per_example=True), tlo.optimizers.RowAdagrad(0.1), seed=1,
        **kw), tlo.losses.SampledSoftmax),
    "index": (lambda **kw: tlo.heads.SampledHead(
        C, tlo.samplers.LSHEmbedding(8, uniform()), tlo.optimizers.RowAdam(0.05), seed=1,
        index=tlo.indexes.HashIndex(tlo.indexes.SimHash(), 2, 2), **kw),
        tlo.losses.ComplementarySum),
    "exact": (lambda **kw: tlo.heads.ExactSoftmaxHead(
        C, tlo.optimizers.RowAdam(0.05), seed=1, **kw), tlo.losses.SoftmaxCrossentropy),
    "exact_all": (lambda **kw: tlo.heads.ExactSoftmaxHead(
        C, tlo.optimizers.RowAdam(0.05), backward="all", **kw), tlo.losses.SoftmaxCrossentropy),
    "factored": (lambda **kw: tlo.heads.FactoredHead(C, 0.1, **kw), tlo.losses.TaylorSoftmax),
    "hierarchical": (lambda **kw: tlo.heads.HierarchicalSoftmaxHead(
        C, tlo.optimizers.RowAdam(0.05), **kw), tlo.losses.NegativeLogLikelihood),
}
OTHER = "CPU:1"

def model_of(kind, **kw):
    make, loss = HEADS[kind]
    keras.utils.set_random_seed(0)
    with tf.device(OTHER):
        model = keras.Sequential([keras.Input([D]), keras.layers.Dense(D), make(**kw)])
        model.compile("sgd", loss(), metrics=[tlo.metrics.PrecisionAtK(1)])
    return model

rng = np.random.default_rng(0)
x, y = rng.standard_normal((N, D)).astype("float32"), rng.integers(C, size=N)

def of_graph(function, far, *like):
    with tf.device(OTHER):
        function = tf.function(function, autograph=False)
        nodes_of(function.get_concrete_function(*like).graph, far, set())

def nodes_of(graph, far, seen):
    for op in graph.get_operations():
        sizes = [s for t in op.outputs for s in (t.shape.as_list() if t.shape.rank else [])]
        is_large = any(s is not None and s >= C for s in sizes)
        # What reads a variable is where that is, and so is what a function returns of it.
        follows = op.type == "Identity" or any(t.dtype == tf.resource for t in op.inputs)
        if is_large and op.type != "Placeholder" and not (follows and op.device == ""):
            if "CPU:0" not in op.device:
                far.add(op.type)
    for name, function in graph._functions.items():
        if name not in seen:
            seen.add(name)
            nodes_of(function.graph, far, seen)

def run(kind, **kw):
    model = model_of(kind, **kw)
    with tf.device(OTHER):
        losses = [float(np.ravel(model.train_on_batch(x, y))[0]) for _ in range(3)]
        losses.append(float(np.ravel(model.test_on_batch(x, y))[0]))
        scores = tlo.top_k_model(model, 3).predict_on_batch(x)[0]
    return model, losses + np.asarray(scores)[0].tolist()

found = {}
for kind in sys.argv[1:]:
    model, on_host = run(kind, device="cpu")
    head, far = model.layers[-1], set()
    own = [*head.variables, *head.optimizer.variables]
    wrong = [v.path for v in own if len(v.shape) and "CPU:0" not in v.value.device]
    assert "CPU:1" in model.layers[0].kernel.value.device
    batch = tf.constant(x), tf.constant(y)
    of_graph(lambda x, y: model.train_step((x, y)), far, *batch)
    of_graph(lambda x, y: model.test_step((x, y)), far, *batch)
    of_graph(lambda x: head.top_k(x, 3), far, batch[0])
    found[kind] = [wrong, sorted(far), on_host, run(kind)[1]]
print(json.dumps(found).replace(" ", ""))
"""

OTHERS = ["factored", "per_example", "index", "exact", "exact_all", "hierarchical"]


def check(tmp_path, kinds):
    found = json.loads(run_program(tmp_path, PROGRAM, *kinds)[-1])
    for kind, (variables, nodes, on_host, anywhere) in found.items():
        assert not variables, kind
        assert not nodes, kind
        assert on_host == pytest.approx(anywhere, rel=1e-5), kind


def test_a_head_is_on_the_host_and_the_trunk_elsewhere(tmp_path):
    check(tmp_path, ["sampled"])


@pytest.mark.thorough
@pytest.mark.parametrize("fallback", ["0", "1"])
def test_every_head_is_on_the_host(tmp_path, monkeypatch, fallback):
    monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", fallback)
    check(tmp_path, OTHERS if fallback == "0" else ["sampled", *OTHERS])


def test_a_step_after_the_gradient_is_on_the_host():
    """As over workers, and of accumulated gradients. Traced only, so that no GPU is needed."""
    head = tlo.heads.SampledHead(
        50, tlo.samplers.Uniform(8), tlo.optimizers.RowAdam(0.1), seed=1, device="cpu"
    )
    head.build((None, 4))
    loss, optimizer = tlo.losses.ComplementarySum(), keras.optimizers.SGD(0.1)
    optimizer.build(head.trainable_variables)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([6, 4])])
    def step(h):
        with tf.device("GPU:0"):
            with tf.GradientTape() as tape:
                value = loss(np.arange(6), head(h, training=True))
            of_weights = tape.gradient(value, head.trainable_variables)
            optimizer.apply(of_weights, head.trainable_variables)

    functions = step.get_concrete_function().graph._functions.values()
    steps = [
        op
        for function in functions
        for op in function.graph.get_operations()
        if op.type in ("TfxCandidateUpdate", "ResourceScatterUpdate")
    ]
    assert steps and all("CPU:0" in op.device for op in steps), {op.device for op in steps}


def test_where_a_head_is_stays_with_its_configuration():
    head = tlo.heads.FactoredHead(50, 0.1, device="cpu")
    copy = tlo.heads.FactoredHead.from_config(head.get_config())
    assert copy.device == "cpu"
    assert tlo.heads.FactoredHead(50, 0.1).device is None
    for device in ("gpu", "CPU:0", 0):
        with pytest.raises(ValueError, match="device must be one of 'cpu'; got"):
            tlo.heads.FactoredHead(50, 0.1, device=device)
    with pytest.raises(TypeError, match="device must be left out of DenseHead"):
        tlo.heads.DenseHead(50, device="cpu")
    embedding = keras.layers.Embedding(50, 4)
    with pytest.raises(TypeError, match="device must be left out of TiedExactSoftmaxHead"):
        tlo.heads.TiedExactSoftmaxHead(embedding, device="cpu")
