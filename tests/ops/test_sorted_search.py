# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.ops.sorted_search import lower_bound, upper_bound

ASCENDING = np.array([-3, 0, 0, 4, 4, 4, 9])


@pytest.mark.parametrize("shape", [(), (0,), (5,), (0, 2), (3, 0), (3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize(("bound", "side"), [(lower_bound, "left"), (upper_bound, "right")])
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_same_as_numpy(bound, side, shape, wrap):
    values = np.random.default_rng(1).integers(-5, 12, shape)
    found = wrap(bound)(tf.constant(ASCENDING), tf.constant(values))
    assert found.dtype == tf.int64
    np.testing.assert_array_equal(found, np.searchsorted(ASCENDING, values, side))
