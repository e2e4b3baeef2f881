# SPDX-License-Identifier: Apache-2.0
"""Margins of labels: the logits with them equal the oracle, angle by angle."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from oracles import margins as oracle

from tfx_largeout.losses import SoftmaxCrossentropy

SCALE = 16.0


@pytest.mark.parametrize("margins", [(0.3, 0.0), (0.0, 0.5), (0.2, 0.4)])
def test_logits_with_margins_are_those_of_the_angles(margins):
    cosines = np.concatenate(
        [np.linspace(-0.999, 0.999, 41), np.cos(np.pi - np.array([0.45, 0.2]))]
    )
    loss = SoftmaxCrossentropy(cosine_margin=margins[0], angular_margin=margins[1])
    logits = tf.constant(SCALE * cosines[:, np.newaxis])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        found = loss.with_margin(logits, tf.constant(SCALE))
    expected, slopes = np.transpose([oracle.psi(cosine, *margins) for cosine in cosines])
    np.testing.assert_allclose(found[:, 0], SCALE * expected, atol=1e-9)
    np.testing.assert_allclose(tape.gradient(found, logits)[:, 0], slopes, rtol=1e-7)
