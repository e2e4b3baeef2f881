# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's built-ins as heads: the same numbers as a direct call of tf.nn."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo

HEADS = {
    tlo.heads.TFSampledSoftmaxHead: tf.nn.sampled_softmax_loss,
    tlo.heads.TFNCEHead: tf.nn.nce_loss,
}
both = pytest.mark.parametrize("head_class", list(HEADS), ids=lambda c: c.__name__)
CLASSES, WIDTH, BATCH = 40, 5, 6


@keras.saving.register_keras_serializable(package="tfx_largeout_tests")
def fixed_candidates(true_classes, num_true, num_sampled, unique, range_max, seed):
    """A sampler that always draws the same candidates."""
    expected = tf.fill(tf.shape(true_classes), 0.3)
    return tf.range(num_sampled, dtype=tf.int64), expected, tf.fill([num_sampled], 0.2)


def batch():
    rng = np.random.default_rng(0)
    return rng.normal(size=(BATCH, WIDTH)).astype("float32"), rng.integers(0, CLASSES, BATCH)


def training_loss(head, hidden, labels):
    return tlo.losses.TFCandidateSamplingLoss()(labels, head(hidden, training=True))


@both
@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("use_bias", [True, False])
def test_equals_the_function_of_tf_nn(head_class, remove, use_bias):
    hidden, labels = batch()
    head = head_class(
        CLASSES,
        num_sampled=8,
        sampler=fixed_candidates,
        remove_accidental_hits=remove,
        use_bias=use_bias,
        bias_initializer="random_normal",
    )
    value = training_loss(head, hidden, labels)
    targets = labels[:, np.newaxis]
    expected = HEADS[head_class](
        weights=head.kernel.value,
        biases=head.bias.value if use_bias else tf.zeros([CLASSES]),
        labels=targets,
        inputs=hidden,
        num_sampled=8,
        num_classes=CLASSES,
        sampled_values=fixed_candidates(targets, 1, 8, True, CLASSES, None),
        remove_accidental_hits=remove,
    )
    np.testing.assert_allclose(value, tf.reduce_mean(expected), rtol=1e-6)


@both
@pytest.mark.parametrize("num_true", [1, 2])
def test_a_sampler_does_not_see_padding(head_class, num_true):
    seen = []

    def sampler(true_classes, **arguments):
        seen.append(true_classes.numpy())
        return fixed_candidates(true_classes, **arguments)

    hidden, labels = batch()
    labels[1::2] = -1
    head = head_class(CLASSES, num_sampled=8, num_true=num_true, sampler=sampler)
    value = training_loss(head, hidden, labels)
    np.testing.assert_array_equal(seen[0], np.repeat(labels[::2, np.newaxis], num_true, axis=1))
    expected = training_loss(head, hidden[::2], labels[::2])
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert training_loss(head, hidden, np.full(BATCH, -1)) == 0


@both
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("log_uniform", {}),
        ("uniform", {}),
        ("learned_unigram", {}),
        ("fixed_unigram", {"unigrams": list(range(1, CLASSES + 1)), "distortion": 0.75}),
    ],
)
def test_every_sampler_of_tensorflow(head_class, sampler, options):
    hidden, labels = batch()
    head = head_class(CLASSES, num_sampled=8, sampler=sampler, sampler_options=options)
    with tf.GradientTape() as tape:
        value = training_loss(head, hidden, labels)
    gradient = tape.gradient(value, head.kernel.value)
    assert np.isfinite(value)
    assert isinstance(gradient, tf.IndexedSlices)
    assert set(labels) <= set(gradient.indices.numpy())


@both
@pytest.mark.cpu
def test_a_seed_makes_training_reproducible(head_class):
    def weights():
        keras.utils.set_random_seed(1)
        head = head_class(CLASSES, num_sampled=8, seed=5)
        model = keras.Sequential([keras.Input((WIDTH,)), head])
        model.compile(keras.optimizers.SGD(0.1), loss=tlo.losses.TFCandidateSamplingLoss())
        model.fit(*batch(), epochs=3, verbose=0)
        return head.kernel.numpy()

    np.testing.assert_array_equal(weights(), weights())


def chosen(head, rows):
    return head._choose_targets(tlo.labels.Labels(tf.constant(rows, tf.int64))).numpy()


@both
def test_one_of_several_labels_is_chosen_evenly(head_class):
    head = head_class(CLASSES, num_sampled=8, seed=2)
    targets = chosen(head, [[-1, 3, 7, -1, 9]] * 3000)[:, 0]
    ids, counts = np.unique(targets, return_counts=True)
    assert ids.tolist() == [3, 7, 9]
    sigma = np.sqrt(3000 * (1 / 3) * (2 / 3))
    assert np.all(np.abs(counts - 1000) < 4 * sigma)


@both
def test_num_true_labels_are_taken_in_turn(head_class):
    head = head_class(CLASSES, num_sampled=8, num_true=3, seed=2)
    targets = chosen(head, [[3, 7, 9], [4, -1, 5], [-1, 6, -1]])
    assert sorted(targets[0]) == [3, 7, 9]
    assert set(targets[1]) == {4, 5}
    assert targets[2].tolist() == [6, 6, 6]


@both
def test_a_callable_sampler_is_saved_by_its_registered_name(head_class):
    head = head_class(CLASSES, num_sampled=8, sampler=fixed_candidates)
    copy = head_class.from_config(head.get_config())
    assert copy.sampler is fixed_candidates


@both
def test_a_sampler_of_tensorflow_may_be_given_as_a_function(head_class):
    head = head_class(CLASSES, num_sampled=8, sampler=tf.random.uniform_candidate_sampler)
    assert head.get_config()["sampler"] == "uniform"


@both
def test_an_unregistered_sampler_can_not_be_saved(head_class):
    head = head_class(CLASSES, num_sampled=8, sampler=lambda **arguments: None)
    with pytest.raises(ValueError, match="sampler must be registered"):
        head.get_config()


@both
def test_candidates_that_may_repeat_can_outnumber_the_classes(head_class):
    hidden, labels = batch()
    head = head_class(CLASSES, num_sampled=100, unique=False)
    with tf.GradientTape() as tape:
        value = training_loss(head, hidden, labels)
    rows = tape.gradient(value, head.kernel.value).indices.numpy()
    assert rows.shape == (BATCH + 100,) and np.bincount(rows[BATCH:]).max() > 1
    assert np.isfinite(value)


@both
def test_counts_may_come_as_an_array(head_class):
    values = []
    for counts in (np.arange(1, CLASSES + 1), list(range(1, CLASSES + 1))):
        keras.utils.set_random_seed(1)
        options = {"unigrams": counts}
        head = head_class(
            CLASSES, num_sampled=8, sampler="fixed_unigram", sampler_options=options, seed=3
        )
        values.append(training_loss(head, *batch()))
    np.testing.assert_array_equal(*values)


@both
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_sampled": 0}, "num_sampled must be an integer of at least 1; got 0"),
        ({"num_sampled": 2.5}, "num_sampled must be an integer of at least 1; got 2.5"),
        ({"num_sampled": 41}, "num_sampled must be at most num_classes=40 .* got 41"),
        ({"num_sampled": 4, "num_true": 0}, "num_true must be an integer of at least 1; got 0"),
        ({"num_sampled": 4, "sampler": "best"}, "sampler must be one of .* got 'best'"),
    ],
)
def test_bad_arguments(head_class, arguments, message):
    with pytest.raises(ValueError, match=message):
        head_class(CLASSES, **arguments)
