# SPDX-License-Identifier: Apache-2.0
"""Every metric against the oracle, on plain logits."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from metrics.metrics_table import CASE_OF_EACH_CLASS, CASES, NUM_CLASSES, random_batch

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_metric = pytest.mark.parametrize("case", CASE_OF_EACH_CLASS, ids=lambda case: case.name)


def close(got, expected: float) -> None:
    np.testing.assert_allclose(float(got), expected, rtol=2e-6, atol=1e-7)


@every_case
@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no-ties"])
def test_equals_the_definition(case, ties):
    for num_columns in (1, 5, 30):
        scores, labels = random_batch(num_columns, num_columns=num_columns, ties=ties)
        close(case.make()(labels, scores), case.expected(scores, labels))


@every_metric
@pytest.mark.parametrize("seed", range(3))
def test_streaming_equals_one_shot_whatever_the_batching(case, seed):
    rng = np.random.default_rng(100 + seed)
    size, num_columns = int(rng.integers(1, 60)), int(rng.integers(1, 8))
    scores, labels = random_batch(seed, size, num_columns)
    weights = rng.choice([0.0, 0.5, 1.0, 3.0], size)
    metric = case.make()
    cuts = np.sort(rng.integers(0, size + 1, int(rng.integers(0, 6))))
    for part in np.split(np.arange(size), cuts):  # some parts are empty
        metric.update_state(labels[part], scores[part], weights[part])
    close(metric.result(), case.expected(scores, labels, weights))


@every_metric
def test_label_forms_agree(case):
    scores, labels = random_batch(3)
    rows = [[int(c) for c in row if c >= 0] for row in labels]
    ragged = tf.ragged.constant(rows, dtype=tf.int64)
    sparse = ragged.to_sparse()
    expected = case.expected(scores, labels)
    for form in (labels.astype(np.int32), labels.astype(np.int64), ragged, sparse):
        close(case.make()(form, scores), expected)


@every_metric
def test_one_label_an_example(case):
    scores, labels = random_batch(4, num_columns=1)
    expected = case.expected(scores, labels)
    close(case.make()(labels, scores), expected)
    close(case.make()(labels[:, 0], scores), expected)


@every_metric
def test_no_column_of_labels(case):
    scores, labels = random_batch(4, num_columns=0)
    np.testing.assert_equal(float(case.make()(labels, scores)), case.expected(scores, labels))


@every_metric
def test_positions_of_a_sequence(case):
    flat_scores, flat_labels = random_batch(5)
    scores, labels = flat_scores.reshape(4, 6, -1), flat_labels.reshape(4, 6, -1)
    close(case.make()(labels, scores), case.expected(flat_scores, flat_labels))
    one = flat_labels[:, :1]
    close(case.make()(one.reshape(4, 6), scores), case.expected(flat_scores, one))


@every_metric
def test_sample_weights_of_a_sequence(case):
    flat_scores, flat_labels = random_batch(6)
    scores, labels = flat_scores.reshape(4, 6, -1), flat_labels.reshape(4, 6, -1)
    for shape in [(4,), (4, 1), (4, 6), (4, 6, 1)]:
        weights = np.random.default_rng(0).choice([0.0, 1.0, 2.0], shape)
        from_the_left = np.broadcast_to(weights.reshape((4, -1)), (4, 6)).ravel()
        got = case.make()(labels, scores, sample_weight=weights)
        close(got, case.expected(flat_scores, flat_labels, from_the_left))


@every_metric
def test_keras_mask_is_a_weight_of_zero(case):
    scores, labels = random_batch(7)
    mask = np.arange(len(scores)) % 3 > 0
    y_pred = tf.constant(scores)
    y_pred._keras_mask = tf.constant(mask)
    close(case.make()(labels, y_pred), case.expected(scores, labels, mask))
    weights = np.linspace(0, 2, len(scores))
    close(case.make()(labels, y_pred, weights), case.expected(scores, labels, mask * weights))


@every_metric
def test_weight_zero_hides_nan(case):
    scores, labels = random_batch(8)
    weights = np.ones(len(scores))
    weights[:5] = 0
    expected = case.expected(scores, labels, weights)
    scores[:5] = np.nan
    close(case.make()(labels, scores, weights), expected)


@every_metric
def test_nan_without_data_and_after_reset(case):
    scores, labels = random_batch(9)
    metric = case.make()
    assert np.isnan(metric.result())
    metric.update_state(labels, scores)
    assert np.isfinite(metric.result())
    metric.reset_state()
    assert np.isnan(metric.result())
    metric.update_state(labels, scores, np.zeros(len(scores)))
    assert np.isnan(metric.result())


@every_metric
def test_graph_equals_eager(case):
    scores, labels = random_batch(10)
    metric = case.make()

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int64),
            tf.TensorSpec([None, NUM_CLASSES], tf.float32),
        ]
    )
    def update(y_true, y_pred):
        metric.update_state(y_true, y_pred)
        return metric.result()

    for part in (slice(0, 7), slice(7, None)):
        got = update(labels[part], scores[part])
    close(got, case.expected(scores, labels))


@every_metric
def test_dtypes_of_logits(case):
    scores, labels = random_batch(11)  # small integers: exact in each dtype
    for dtype in (tf.bfloat16, tf.float16, tf.float64):
        close(case.make()(labels, tf.cast(scores, dtype)), case.expected(scores, labels))


@every_metric
def test_result_dtype_and_default_name(case):
    assert case.make().name == case.name
    assert case.make().result().dtype == tf.float32
    assert case.make(dtype="float64").result().dtype == tf.float64
    assert case.make(name="other").name == "other"


@every_metric
def test_config_round_trip(case):
    metric = case.make(name="mine", dtype="float64", during_training=True)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert type(copy) is type(metric)
    assert copy.get_config() == metric.get_config()
    assert (copy.name, copy.dtype, copy.during_training) == ("mine", "float64", True)
    scores, labels = random_batch(12)
    close(copy(labels, scores), case.expected(scores, labels))


@every_metric
def test_a_hundred_million_examples(case):
    """In float32, three examples more would change neither sum."""
    scores, labels = random_batch(13, num_examples=2, ties=False)
    labels[:, 0] = 3
    first, second, both = case.make(), case.make(), case.make()
    first.update_state(labels[:1], scores[:1])
    second.update_state(labels[1:], scores[1:])
    both.update_state(labels[:1], scores[:1], [1e8])
    for _ in range(3):
        both.update_state(labels[1:], scores[1:])
    sums = ([metric.numerator, metric.denominator] for metric in (both, first, second))
    for got, one, other in zip(*sums, strict=True):
        np.testing.assert_allclose(float(got), 1e8 * float(one) + 3 * float(other), rtol=1e-14)


@every_metric
def test_bad_input_leaves_the_state(case):
    scores, labels = random_batch(15)
    metric = case.make()
    expected = float(metric(labels, scores))
    bad_label = labels.copy()
    bad_label[2, 1] = NUM_CLASSES
    bad = [
        (ValueError, r"logits \[\.\.\., C\].*got shape \(13,\)", labels[0], scores[0], None),
        (
            TypeError,
            "y_pred must be floating; got dtype int32",
            labels,
            scores.astype("int32"),
            None,
        ),
        (TypeError, "labels must be integer.*float32", labels.astype("float32"), scores, None),
        (tf.errors.InvalidArgumentError, "less than 13", bad_label, scores, None),
        (tf.errors.InvalidArgumentError, "must be the batch dimensions", labels[:3], scores, None),
        (ValueError, r"sample_weight must.*\(24, 5\)", labels, scores, np.ones((24, 5))),
        (ValueError, r"sample_weight must broadcast.*\(7,\)", labels, scores, np.ones(7)),
    ]
    for error, message, y_true, y_pred, weights in bad:
        with pytest.raises(error, match=message):
            metric.update_state(y_true, y_pred, weights)
    assert float(metric.result()) == expected


@pytest.mark.parametrize(
    "case", [c for c in CASE_OF_EACH_CLASS if "_at_" in c.name], ids=lambda case: case.name
)
def test_bad_k(case):
    config = case.make().get_config()
    for k in (0, -3, 1.0, True, None):
        with pytest.raises(ValueError, match=f"k must be an integer of at least 1; got {k}"):
            type(case.make()).from_config({**config, "k": k})


def test_numpy_k_is_an_integer():
    metric = type(CASES[0].make())(np.int64(2))
    assert metric.name == "precision_at_2"
    assert type(metric.get_config()["k"]) is int
