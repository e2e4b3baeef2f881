# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from oracles import ranking_metrics as oracle

from tfx_largeout.metrics import propensities


@pytest.mark.parametrize(("a", "b"), [(0.55, 1.5), (0.5, 0.4), (0.6, 2.6), (0.0, 1.0)])
def test_equals_the_definition(a, b):
    counts = np.array([0, 1, 2, 17, 490_000])
    got = propensities(counts, 490_449, a, b)
    assert got.dtype == np.float64
    expected = [oracle.propensity(int(n), 490_449, a, b) for n in counts]
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_rises_with_the_count():
    got = propensities(np.arange(100), 1000)
    assert np.all(np.diff(got) > 0)
    assert 0 < got[0] < got[-1] < 1


def test_defaults_are_the_papers():
    np.testing.assert_array_equal(propensities([3], 100), propensities([3], 100, a=0.55, b=1.5))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"label_counts": [[1, 2]]}, ValueError, r"shape \[C\], C > 0; got shape \(1, 2\)"),
        ({"label_counts": []}, ValueError, r"got shape \(0,\)"),
        ({"label_counts": [1.5]}, TypeError, "label_counts must be integers; got float64"),
        ({"label_counts": [4, -2]}, ValueError, "not be negative; got -2 for label 1"),
        ({"label_counts": [4, 11]}, ValueError, "exceed num_examples=10; got 11 for label 1"),
        ({"num_examples": 2}, ValueError, "num_examples must be an integer of at least 3; got 2"),
        ({"num_examples": 9.5}, ValueError, "num_examples must be an integer of .* got 9.5"),
        ({"a": -0.1}, ValueError, "a must be a finite number at least 0; got -0.1"),
        ({"a": float("nan")}, ValueError, "a must be a finite number at least 0; got nan"),
        ({"b": 0.0}, ValueError, "b must be a finite number above 0; got 0.0"),
        ({"b": -1.0}, ValueError, "b must be a finite number above 0; got -1.0"),
        ({"b": float("inf")}, ValueError, "b must be a finite number above 0; got inf"),
    ],
)
def test_bad_arguments(change, error, message):
    with pytest.raises(error, match=message):
        propensities(**{"label_counts": [1, 2], "num_examples": 10, **change})
