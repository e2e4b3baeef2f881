# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import softmax as oracle

import tfx_largeout as tlo
from tfx_largeout.heads.base import head_output
from tfx_largeout.labels import normalize_labels
from tfx_largeout.statistics import ExactStatistics


def numeric_gradient(function, at, step=1e-5):
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        moved = at.copy()
        moved[index] += step
        above = function(moved)
        moved[index] -= 2 * step
        gradient[index] = (above - function(moved)) / (2 * step)
    return gradient


@pytest.mark.parametrize("use_bias", [True, False])
def test_loss_and_gradients_equal_the_oracle(use_bias):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(4, 3)).astype("float32")
    lists = [[0], [1, 4], [6, 2, 3], [4]]
    labels = tf.ragged.constant(lists, dtype=tf.int64)
    head = tlo.heads.DenseHead(7, use_bias=use_bias, bias_initializer="random_normal")
    head.build((None, 3))
    variables = [tf.Variable(hidden), head.kernel.value]
    if use_bias:
        variables.append(head.bias.value)
    with tf.GradientTape() as tape:
        loss = tlo.losses.SoftmaxCrossentropy()(labels, head(variables[0], training=True))
    gradients = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, variables)]

    values = [v.numpy().astype("float64") for v in variables]

    def loss_at(*arguments):
        return oracle.cross_entropy(*(*arguments, None)[:3], lists).mean()

    np.testing.assert_allclose(loss, loss_at(*values), rtol=1e-6)
    for position, gradient in enumerate(gradients):
        expected = numeric_gradient(
            lambda moved, p=position: loss_at(*values[:p], moved, *values[p + 1 :]),
            values[position],
        )
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_without_bias_there_is_one_weight():
    head = tlo.heads.DenseHead(7, use_bias=False)
    head.build((None, 3))
    assert [tuple(w.shape) for w in head.weights] == [(7, 3)]


def test_equals_a_dense_layer_with_the_transposed_kernel():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2, 5, 3)).astype("float32")
    head = tlo.heads.DenseHead(7, bias_initializer="random_normal")
    logits = head(hidden)
    dense = keras.layers.Dense(7)
    dense.build((None, 3))
    dense.set_weights([head.kernel.numpy().T, head.bias.numpy()])
    assert logits.shape == (2, 5, 7)
    np.testing.assert_allclose(logits, dense(hidden), rtol=1e-5, atol=1e-6)


def test_the_width_must_be_known():
    with pytest.raises(ValueError, match="must be known"):
        tlo.heads.DenseHead(7).build((None, None))


def test_another_width_is_refused():
    head = tlo.heads.DenseHead(7)
    head(np.zeros((1, 3), "float32"))
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 3"):
        head(np.zeros((1, 4), "float32"))


def test_rows_of_labels_must_match_the_batch():
    head = tlo.heads.DenseHead(7)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be the batch dimensions"):
        tlo.losses.SoftmaxCrossentropy()([1, 2, 3], head(np.zeros((2, 3), "float32")))


def test_the_exact_pass_is_made_once_for_all_who_ask():
    head = tlo.heads.DenseHead(7, cosine_scale=4)
    output = head_output(head(np.ones((2, 3), "float32")))
    labels = tf.constant([1, 2])
    exact = output.statistics(ExactStatistics, labels)
    assert output.statistics(ExactStatistics, labels) is exact
    assert output.statistics(ExactStatistics, tf.constant([1, 2])) is not exact
    for kind in (ExactStatistics, *head.gives):
        assert isinstance(output.statistics(kind, labels), kind)


def every_loss_of_all_classes():
    dense = tlo.heads.DenseHead(7, kernel_initializer="random_normal")
    factored = tlo.heads.FactoredHead(7, 0.1)
    tree = tlo.heads.HierarchicalSoftmaxHead(7, tlo.optimizers.RowSGD())
    return [
        (dense, tlo.losses.SoftmaxCrossentropy()),
        (dense, tlo.losses.SquaredError()),
        (tree, tlo.losses.NegativeLogLikelihood()),
        (factored, tlo.losses.SquaredError()),
    ]


@pytest.mark.parametrize(("head", "loss"), every_loss_of_all_classes())
def test_labels_that_change_in_place_are_read_again(head, loss):
    y_pred = head(np.random.default_rng(0).normal(size=(2, 3)).astype("float32"))
    for labels in (np.array([1, 2]), tf.Variable([1, 2])):
        before = float(loss(labels, y_pred))
        if isinstance(labels, np.ndarray):
            labels[:] = [3, 5]
        else:
            labels.assign([3, 5])
        assert float(loss(labels, y_pred)) == float(loss(np.array([3, 5]), y_pred)) != before


@pytest.mark.parametrize(("head", "loss"), every_loss_of_all_classes())
def test_an_evaluation_loss_has_no_gradient_asked_for_once_or_twice(head, loss):
    hidden, labels = tf.ones([2, 3]), tf.constant([1, 2])
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        y_pred = head(hidden, training=False)
        with tape.stop_recording():
            loss(labels, y_pred)
        value = loss(labels, y_pred)
    with pytest.raises(LookupError):
        tape.gradient(value, hidden)


def test_none_rides_on_other_tensors():
    assert head_output(tf.zeros([2, 3])) is None


def test_training_loss_is_never_negative_in_mixed_bfloat16():
    keras.config.set_dtype_policy("mixed_bfloat16")
    head = tlo.heads.DenseHead(5, kernel_initializer=keras.initializers.RandomNormal(stddev=30))
    hidden = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
    logits = np.asarray(head(hidden))
    labels = np.argmax(logits, axis=-1)
    losses = tlo.losses.SoftmaxCrossentropy(reduction="none")(labels, head(hidden, training=True))
    assert np.min(losses) >= -np.spacing(np.max(np.abs(logits)))  # one rounding of a logit


@pytest.mark.parametrize(
    "hidden", [tf.sparse.from_dense([[1.0, 0.0]]), tf.constant([[1, 2]])], ids=["sparse", "integer"]
)
def test_only_dense_floats(hidden):
    with pytest.raises(TypeError, match="must get a dense floating tensor"):
        tlo.heads.DenseHead(5)(hidden)


@pytest.mark.parametrize("kind", tlo.heads.DenseHead.gives, ids=lambda kind: kind.__name__)
def test_a_training_step_reads_each_weight_once(kind):
    """There is no second read that the optimizer's step could overtake."""
    head = tlo.heads.DenseHead(5)
    head.build((None, 3))

    @tf.function
    def statistics(hidden, labels):
        return head.statistics(kind, hidden, normalize_labels(labels, 5), training=True)

    graph = statistics.get_concrete_function(tf.ones([4, 3]), tf.constant([1, 2, 3, 0])).graph
    for weight in (head.kernel, head.bias):
        handle = next(inner for outer, inner in graph.captures if outer is weight.value.handle)
        assert [op.type for op in handle.consumers()] == ["ReadVariableOp"]


@pytest.mark.thorough
@pytest.mark.cpu
def test_runs_repeat_bit_for_bit():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(48, 6)).astype("float32"), rng.integers(0, 40, 48)

    def losses():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(6, "tanh"), tlo.heads.DenseHead(40)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.SGD(0.5), loss=tlo.losses.SoftmaxCrossentropy())
        data = tf.data.Dataset.from_tensor_slices((x, labels)).batch(16).repeat()
        return model.fit(data, epochs=100, steps_per_epoch=3, verbose=0).history["loss"]

    assert losses() == losses() == losses()
