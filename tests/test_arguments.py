# SPDX-License-Identifier: Apache-2.0
"""Valid integers, numbers, and choices."""

from __future__ import annotations

import inspect
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.arguments import (
    choice_argument,
    class_argument,
    flag_argument,
    instance_argument,
    integer_argument,
    number_argument,
)


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_integers(value):
    result = integer_argument("n", value, at_least=3)
    assert type(result) is int and result == 3


@pytest.mark.parametrize("value", [2, 3.0, True, np.bool_(True), "3", None, float("nan"), [3]])
def test_what_is_no_integer_of_at_least_three(value):
    with pytest.raises(ValueError, match="n must be an integer of at least 3; got "):
        integer_argument("n", value, at_least=3)


@pytest.mark.parametrize("value", [None, 0, -100, np.int64(7), -(2**63), 2**63 - 1])
def test_a_class_or_what_stands_in_its_place(value):
    assert class_argument("c", value) == value


@pytest.mark.parametrize("value", [1.0, True, "pad", 2**63, -(2**63) - 1])
def test_what_is_no_class(value):
    with pytest.raises(ValueError, match=r"c must be an integer of at least -.* at most 9.*; got"):
        class_argument("c", value)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), tf.constant(2.0), keras.Variable(2.0)])
def test_numbers(value):
    result = number_argument("x", value, above=1, at_most=2)
    assert type(result) is float and result == 2


NOT_NUMBERS = [True, np.bool_(True), np.array(True), "1", b"1", np.array("1"), None, 1j, [1, 2]]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, np.nan, 10**400], ids=lambda value: str(value)[:9])
def test_what_is_no_number(value):
    with pytest.raises(ValueError, match="x must be a finite number; got "):
        number_argument("x", value)


@pytest.mark.parametrize(
    ("limits", "value", "rule"),
    [
        ({"above": 0}, 0, "above 0"),
        ({"at_least": 0}, -0.1, "at least 0"),
        ({"at_least": 0, "below": 1}, 1, "at least 0 and below 1"),
        ({"at_least": 0, "at_most": 1}, 1.5, "at least 0 and at most 1"),
        ({"above": -1}, np.inf, "above -1"),
        ({}, -np.inf, ""),
    ],
)
def test_limits(limits, value, rule):
    rule = f"a finite number {rule}".rstrip()
    with pytest.raises(ValueError, match=f"x must be {rule}; got {value}"):
        number_argument("x", value, **limits)


def test_a_number_without_limits_may_be_negative():
    assert number_argument("x", -2) == -2.0


@pytest.mark.parametrize("value", ["c", None, 1, ["a"]])
def test_choices(value):
    assert choice_argument("kind", "a", ("a", "b")) == "a"
    with pytest.raises(ValueError, match="kind must be one of 'a', 'b'; got "):
        choice_argument("kind", value, ("a", "b"))


def test_instances():
    assert instance_argument("x", None, list, lambda: [1]) == [1]
    assert instance_argument("x", [2], list, list) == [2]
    with pytest.raises(ValueError, match="x must be a list; got 3"):
        instance_argument("x", 3, list, list)


@pytest.mark.parametrize("value", [True, np.bool_(False)])
def test_flags(value):
    assert flag_argument("f", value) is bool(value)


@pytest.mark.parametrize("value", [1, 0, None, "False", "true", np.array([True])])
def test_what_is_no_flag(value):
    with pytest.raises(ValueError, match="f must be True or False; got "):
        flag_argument("f", value)


def test_all_flags_of_public_classes_are_checked():
    """The text "False", as of a configuration file, would otherwise be True."""
    modules = [tlo, *(value for value in vars(tlo).values() if inspect.ismodule(value))]
    classes = {x for module in modules for x in vars(module).values() if inspect.isclass(x)}
    unchecked = set()
    for each in classes:
        if not each.__module__.startswith("tfx_largeout") or issubclass(each, tuple):
            continue
        files = {kind.__module__ for kind in each.__mro__ if "tfx_largeout" in kind.__module__}
        text = "".join(inspect.getsource(sys.modules[name]) for name in files)
        text = re.sub(r"\(\s+", "(", text)
        flags = [
            parameter.name
            for parameter in inspect.signature(each).parameters.values()
            if str(parameter.annotation).removesuffix(" | None") == "bool"
        ]
        unchecked |= {(each.__name__, n) for n in flags if f'flag_argument("{n}"' not in text}
    assert not unchecked
