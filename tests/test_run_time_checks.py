# SPDX-License-Identifier: Apache-2.0
"""Checks that take one branch: the first that does not hold raises, before anything else runs."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_largeout.run_time_checks import Check, after


def checked(x):
    limits = {"three": 3, "two": 2, "one": 1}
    checks = [
        Check(x < limit, lambda name=name: [f"x must be below {name}; got", x])
        for name, limit in limits.items()
    ]
    with after([None, *checks]):
        return tf.identity(x)


@pytest.mark.parametrize("call", [checked, tf.function(checked, autograph=False)])
def test_the_first_that_does_not_hold_raises(call):
    assert call(tf.constant(0)) == 0
    for x, name in ((1, "one"), (2, "two"), (5, "three")):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            call(tf.constant(x))
        assert f"x must be below {name}; got" in str(caught.value)
        assert str(x) in str(caught.value)


@pytest.mark.parametrize("in_graph", [False, True])
def test_what_comes_after_does_not_run(in_graph):
    state = tf.Variable(0)

    def step(x):
        with after([Check(x < 1, lambda: ["x must be below 1; got", x])]):
            state.assign_add(1)

    call = tf.function(step, autograph=False) if in_graph else step
    call(tf.constant(0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="x must be below 1"):
        call(tf.constant(1))
    assert state.numpy() == 1


@pytest.mark.parametrize("in_graph", [False, True])
def test_nothing_to_check(in_graph):
    def step(x):
        with after([]), after([None]):
            return x + 1

    assert (tf.function(step, autograph=False) if in_graph else step)(tf.constant(1)) == 2


def test_a_message_is_made_only_where_a_check_fails():
    made = []

    def message():
        made.append(1)
        return ["wrong"]

    with after([Check(tf.constant(True), message)]):
        assert not made
