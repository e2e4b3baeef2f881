# SPDX-License-Identifier: Apache-2.0
"""streamed_logits raises errors for wrong arguments with name, rule and value."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from ops.streamed_logits_cases import use

from tfx_largeout.ops.exact.streamed_logits import streamed_logits

GOOD = {
    "hidden": np.zeros((2, 3), np.float32),
    "kernel": np.zeros((5, 3), np.float32),
    "bias": np.zeros(5, np.float32),
    "labels": np.zeros((2, 1), np.int64),
    "k": 2,
}


@pytest.fixture(params=["baseline", "composed"])
def implementation(request, monkeypatch):
    return use(request.param, monkeypatch)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("hidden", np.zeros(3, np.float32), ValueError, "hidden must have rank 2.*(3,)"),
        ("hidden", np.zeros((2, 4), np.float32), ValueError, "hidden must be .*which is 3; got 4"),
        ("hidden", np.zeros((2, 3), np.int32), TypeError, "hidden must be floating.*int32"),
        ("kernel", np.zeros(5, np.float32), ValueError, "kernel must have rank 2.*(5,)"),
        ("kernel", np.zeros((5, 3), np.int32), TypeError, "kernel must be float32.*int32"),
        ("bias", np.zeros((5, 1), np.float32), ValueError, "bias must have rank 1.*(5, 1)"),
        ("bias", np.zeros(4, np.float32), ValueError, "bias must be .*which is 5; got 4"),
        ("bias", np.zeros(5, np.float64), TypeError, "bias must have the dtype.*float64"),
        ("labels", np.zeros(2, np.int64), ValueError, "labels must have rank 2.*(2,)"),
        ("labels", np.zeros((3, 1), np.int64), ValueError, "labels must be .*which is 2; got 3"),
        ("labels", np.zeros((2, 1), np.float32), TypeError, "labels must be integers.*float32"),
        ("k", -1, ValueError, "k must be an integer of at least 0; got -1"),
        ("k", 6, ValueError, "k must be at most num_classes=5; got 6"),
        ("k", 1.5, ValueError, "k must be an integer of at least 0; got 1.5"),
        ("k", True, ValueError, "k must be an integer of at least 0; got True"),
        ("implementation", "fast", ValueError, "implementation must be one of.*'fast'"),
    ],
)
def test_what_is_known_before_the_run(name, value, error, message, implementation):
    arguments = {**GOOD, "implementation": implementation, name: value}
    with pytest.raises(error, match=message):
        streamed_logits(**arguments)


@pytest.mark.parametrize("wrong", [-2, 5, 2**40])
@pytest.mark.parametrize("as_variable", [True, False])
def test_a_label_out_of_range(wrong, as_variable, implementation):
    labels = np.array([[0, -1, 4], [1, wrong, 2]])
    kernel = tf.Variable(GOOD["kernel"]) if as_variable else GOOD["kernel"]
    arguments = {**GOOD, "kernel": kernel, "labels": labels, "implementation": implementation}
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        streamed_logits(**arguments)
    message = error.value.message
    assert "labels must be class ids in [-1, num_classes), where num_classes is" in message
    assert re.search(rf"got[^-0-9]*{wrong}\b", message)
    assert re.search(r"position\D*1\D+1\b", message)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"hidden": (2, 4)}, "hidden must have as many columns as kernel"),
        ({"bias": (4,)}, "bias must have one entry for each row of kernel"),
        ({"labels": (3, 1)}, "labels must have as many rows as hidden"),
        ({"kernel": (1, 3), "bias": (1,)}, "k must be at most num_classes"),
    ],
)
def test_shapes_known_at_run_time_only(shapes, message, implementation):
    def call(hidden, kernel, bias, labels):
        return streamed_logits(hidden, kernel, bias, labels, 2, implementation=implementation)

    unknown = [
        tf.TensorSpec([None, None]),
        tf.TensorSpec([None, None]),
        tf.TensorSpec([None]),
        tf.TensorSpec([None, None], tf.int64),
    ]
    arguments = [
        tf.zeros(shapes.get(name, GOOD[name].shape), GOOD[name].dtype)
        for name in ("hidden", "kernel", "bias", "labels")
    ]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.function(call, input_signature=unknown)(*arguments)


def test_the_op_does_not_accept_float64():
    with pytest.raises(TypeError, match=r"implementation='op'.*float64"):
        streamed_logits(
            GOOD["hidden"], np.zeros((5, 3)), None, GOOD["labels"], 1, implementation="op"
        )


@pytest.mark.cpu
def test_a_variable_of_another_dtype_than_the_op(monkeypatch):
    use("baseline", monkeypatch)
    from tfx_largeout.ops import library

    with pytest.raises(tf.errors.InvalidArgumentError, match="kernel must have the dtype of bias"):
        library.load().tfx_resource_streamed_logits(
            GOOD["hidden"],
            tf.Variable(GOOD["kernel"]).handle,
            tf.zeros([5], tf.bfloat16),
            GOOD["labels"],
            tf.zeros([0, 0]),
            first_class=0,
            class_stride=1,
            num_classes=5,
            k=1,
        )


@pytest.mark.cpu
def test_an_unknown_instruction_set(monkeypatch):
    use("baseline", monkeypatch)
    monkeypatch.setenv("TFX_LARGEOUT_ISA", "sse9")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"TFX_LARGEOUT_ISA must be.*sse9"):
        streamed_logits(**GOOD, implementation="op")
