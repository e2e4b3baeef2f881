# SPDX-License-Identifier: Apache-2.0
"""connect: its arguments, and errors before it waits for other workers."""

from __future__ import annotations

import json
import socket

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.distribute import connect, current, shard
from tfx_largeout.distribute.workers import ALONE

TWO = ["127.0.0.1:45001", "127.0.0.1:45002"]


def config(cluster, job="worker", index=0):
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


@pytest.mark.parametrize(
    "text", ["", "{}", config({"worker": TWO[:1]}), config({"chief": TWO[:1]}, "chief")]
)
def test_alone_nothing_happens(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    assert connect() is ALONE and current() is ALONE
    assert connect(TWO[:1], 0) is ALONE
    dataset = tf.data.Dataset.range(4).batch(2)
    assert shard(dataset) is dataset


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG must be JSON"),
        ("[1]", "TF_CONFIG must be JSON"),
        (json.dumps({"cluster": {"worker": TWO}}), "TF_CONFIG must be JSON with a cluster and a"),
        (config({"worker": TWO, "ps": TWO}), "TF_CONFIG must have the jobs"),
        (config({"worker": TWO, "chief": TWO}), "TF_CONFIG must have the jobs"),
        (config({"worker": TWO}, index=2), "task of TF_CONFIG must be one of its cluster"),
        (config({"worker": TWO}, "evaluator"), "task of TF_CONFIG must be one of its cluster"),
    ],
)
def test_a_wrong_tf_config(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message):
        connect()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"addresses": []}, "addresses must name at least one worker"),
        ({"addresses": TWO}, "rank must be given"),
        ({"addresses": TWO, "rank": 2}, "rank must be less than 2"),
        ({"addresses": TWO, "rank": -1}, "rank must be"),
        ({"addresses": ["here", TWO[0]], "rank": 0}, "each address must be 'host:port'"),
        ({"addresses": [TWO[0], TWO[0]], "rank": 0}, "workers must have different addresses"),
        ({"timeout": 0}, "timeout must be"),
        ({"step_timeout": -1}, "step_timeout must be"),
        ({"heartbeat_timeout": 0}, "heartbeat_timeout must be"),
        ({"wire_dtype": "float16"}, "wire_dtype must be one of"),
        ({"data_replicas": 0}, "data_replicas must be an integer of at least 1; got 0"),
        ({"data_replicas": 1.5}, "data_replicas must be an integer of at least 1; got 1.5"),
        (
            {"addresses": TWO, "rank": 0, "data_replicas": 3},
            "data_replicas must divide the number of workers, 2; got 3",
        ),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        connect(**arguments)
    assert current() is ALONE


def test_a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RuntimeError, match=f"got {address}, which is taken"):
            connect([address, TWO[0]], 0)


def test_after_tensorflow_has_computed_something():
    tf.constant(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(RuntimeError, match="connect must come before anything"):
        connect([address, TWO[0]], 0)
    assert current() is ALONE


def test_alone_data_parallel_is_the_inner_optimizer():
    weights = []
    for wrap in (lambda optimizer: optimizer, tlo.distribute.DataParallel):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        model.compile(wrap(keras.optimizers.Adam(0.1, clipnorm=0.1)), "mse", run_eagerly=True)
        model.fit(np.ones([8, 3]), np.ones([8, 2]), epochs=3, batch_size=3, verbose=0)
        weights.append(model.get_weights())
        assert int(model.optimizer.iterations) == 9
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_with_data_parallel_is_saved_and_goes_on(tmp_path):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    optimizer = tlo.distribute.DataParallel(keras.optimizers.Adam(0.1), check_every=7)
    model.compile(optimizer, "mse", run_eagerly=True)
    x, y = np.ones([8, 3]), np.ones([8, 2])
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.check_every == 7 and int(loaded.optimizer.iterations) == 1
    model.optimizer.learning_rate = loaded.optimizer.learning_rate = 0.02
    for each in (model, loaded):
        each.fit(x, y, verbose=0)
    for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("inner", "error", "message"),
    [
        (3, (TypeError, ValueError), "."),
        (lambda: tlo.distribute.DataParallel("sgd"), TypeError, "another Keras optimizer"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), ValueError, "scale"),
        (lambda: keras.optimizers.SGD(loss_scale_factor=2.0), ValueError, "scale the loss"),
        (lambda: keras.optimizers.SGD(use_ema=True), ValueError, "average weights"),
    ],
)
def test_inner_optimizers_that_are_refused(inner, error, message):
    with pytest.raises(error, match=message):
        tlo.distribute.DataParallel(inner() if callable(inner) else inner)
