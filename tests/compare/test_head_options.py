# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest

from tfx_largeout.compare.head_builders import HeadBuilder
from tfx_largeout.compare.head_options import HEAD_OPTIONS, choose_options, fitted
from tfx_largeout.compare.head_table import HEAD_TABLE, head_row
from tfx_largeout.losses import SoftmaxCrossentropy

NUMBERS = ("num_sampled", "num_found", "num_selected", "num_words", "top_k")
OPTIONS = {option.name: option for option in HEAD_OPTIONS}
DEFAULTS = {
    "full_softmax": {"head_learning_rate": 0.1},
    "tf_nce": {"head_learning_rate": 1.0, "num_sampled": 100},
}


def choose(name, *texts):
    return choose_options(OPTIONS[name], list(texts), DEFAULTS)


def test_a_value_for_all_reaches_the_heads_that_have_the_option():
    assert choose("num_sampled", "7") == {"tf_nce": {"num_sampled": 7}}
    assert choose("head_learning_rate", "2e-3") == {
        "full_softmax": {"head_learning_rate": 0.002},
        "tf_nce": {"head_learning_rate": 0.002},
    }


@pytest.mark.parametrize("texts", [("tf_nce=5,2",), ("2", "tf_nce=5"), ("tf_nce=5", "2")])
def test_a_value_for_one_head_goes_first(texts):
    chosen = choose("head_learning_rate", *texts)
    assert chosen["full_softmax"]["head_learning_rate"] == 2
    assert chosen["tf_nce"]["head_learning_rate"] == 5


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("head_learning_rate", "0", "--head-learning-rate must be a number above 0; got '0'"),
        ("head_learning_rate", "tf_nce=nan", "rate must be a number above 0; got 'nan'"),
        ("num_sampled", "1.5", "--num-sampled must be an integer of at least 1; got '1.5'"),
        ("num_sampled", "full_softmax=3", r"this option \(tf_nce\); got 'full_softmax=3'"),
        ("num_true", "2", "--num-true must be an option of a chosen head; got '2'"),
        ("head_learning_rate", "", "got ''"),
    ],
)
def test_bad_values(name, text, message):
    with pytest.raises(ValueError, match=message):
        choose(name, text)


def test_every_option_of_the_table_is_a_flag_that_accepts_its_default():
    for row in HEAD_TABLE:
        assert {"trunk_optimizer", "trunk_learning_rate", "neighbors"} <= row.options.keys()
        for name, default in row.options.items():
            assert OPTIONS[name].parse(str(default)) == default


@pytest.mark.parametrize("row", HEAD_TABLE, ids=lambda row: row.name)
def test_defaults_go_with_few_classes(row):
    defaults = row.default_options
    options = fitted(defaults, defaults, 40, row.in_proportion)
    assert {name: value for name, value in options.items() if value != defaults[name]} == {
        **{name: 40 for name in NUMBERS if defaults.get(name, 0) > 40},
        **{name: defaults[name] * 40 / 139_536 for name in row.in_proportion},
    }
    built, loss = row.make(HeadBuilder(40, np.arange(40), 0, options))
    hidden = np.random.default_rng(0).standard_normal([3, 8]).astype("float32")
    logits = np.float64(built(hidden))
    log_z = np.log(np.exp(logits).sum(axis=1))
    exact = SoftmaxCrossentropy()(np.arange(3), built(hidden, training=False))
    np.testing.assert_allclose(exact, (log_z - logits[range(3), range(3)]).mean(), rtol=1e-5)
    assert np.isfinite(loss(np.arange(3), built(hidden, training=True)))


def test_what_the_user_chose_stays():
    defaults = {"num_sampled": 1000, "num_found": 500, "head_learning_rate": 1000.0}
    assert fitted(defaults, defaults, 40, chosen=["num_found"])["num_found"] == 500
    chosen = {**defaults, "num_found": 60}
    assert fitted(chosen, defaults, 40) == {**chosen, "num_sampled": 40}
    assert fitted(defaults, defaults, 5000) == defaults


def test_defaults_in_proportion_to_the_classes():
    defaults = {"head_learning_rate": 3000.0, "trunk_learning_rate": 0.002}
    half = {**defaults, "head_learning_rate": 1500.0}
    assert fitted(defaults, defaults, 139_536 // 2, ("head_learning_rate",)) == half
    chosen = {**defaults, "head_learning_rate": 7.0}
    assert fitted(chosen, defaults, 139_536 // 2, ("head_learning_rate",)) == chosen


@pytest.mark.parametrize("name", ["factored_taylor", "factored_spherical"])
def test_spherical_softmaxes_train_on_few_classes(name):
    row = head_row(name)
    options = fitted(row.default_options, row.default_options, 40, row.in_proportion)
    head, loss = row.make(HeadBuilder(40, np.arange(40), 0, options))
    model = keras.Sequential([keras.Input([8]), head])
    model.compile(keras.optimizers.Adam(options["trunk_learning_rate"]), loss, run_eagerly=True)
    x = np.random.default_rng(0).standard_normal([200, 8])
    losses = model.fit(x, np.arange(200) % 40, batch_size=100, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
