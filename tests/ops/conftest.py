# SPDX-License-Identifier: Apache-2.0
"""Ops keep no Keras state: nothing to clean between their tests, of which there are hundreds."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def clean_keras():
    pass
