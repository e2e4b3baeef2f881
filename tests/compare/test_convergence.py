# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from compare.points import make_curve

from tfx_largeout.compare.results import time_to_reach

# (epoch, seconds, P@1)
CURVE = make_curve([(0, 0, 0.0), (1, 10, 0.2), (2, 20, 0.1), (4, 40, 0.5)])


@pytest.mark.parametrize(
    ("target", "epochs", "seconds"),
    [
        (0.0, 0.0, 0.0),
        (0.1, 0.5, 5.0),  # half way to the first evaluation
        (0.2, 1.0, 10.0),  # exactly at an evaluation
        (0.3, 3.0, 30.0),  # after a fall, from the last value on
        (0.5, 4.0, 40.0),
    ],
)
def test_reached_on_straight_lines(target, epochs, seconds):
    reached = time_to_reach(CURVE, target)
    assert reached.epochs == pytest.approx(epochs)
    assert reached.seconds == pytest.approx(seconds)


def test_not_reached():
    assert time_to_reach(CURVE, 0.51) is None
    assert time_to_reach([], 0.0) is None
