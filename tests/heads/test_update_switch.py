# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tensorflow as tf

from tfx_largeout.heads.update_switch import UpdateSwitch, seed_argument, seed_of_step


def test_a_function_that_is_traced_knows_where_the_switch_is_off():
    switch = UpdateSwitch()

    @tf.function
    def inside_and_behind():
        with switch.off(3):
            inside = switch.is_on
        return inside, switch.is_on

    assert [bool(is_on) for is_on in inside_and_behind()] == [False, True]
    with switch.off(5):  # earlier traces read it, too
        assert [bool(is_on) for is_on in inside_and_behind()] == [False, False]
        assert not switch.is_on
    assert switch.is_on


def test_draws_with_any_two_seeds_differ():
    step, draws = tf.constant(5), tf.constant([0, 1], tf.int64)
    seeds = (0, seed_argument(2**31), seed_argument(2**32 - 1))
    found = {tuple(seed_of_step(seed, step, draw).numpy()) for seed in seeds for draw in draws}
    assert len(found) == 6
