# SPDX-License-Identifier: Apache-2.0
"""A word about weights of 16 bits, in which small steps are lost."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from tfx_largeout.keras_internals import variable_behind

_STEPS = {"bfloat16": 256, "float16": 2048}  # between a power of 2 and the next
_ATTRIBUTE = "_tfx_largeout_is_known_short"


def warn_of_short_weights(owner: str, variables: Iterable[Any]) -> None:
    """Warns, once for each variable, of training one of 16 bits.

    Args:
        owner: Who trains them, for the message.
        variables: Keras variables; others than those of 16 bits are passed over.
    """
    short = []
    for variable in variables:
        own = variable_behind(variable)  # whose dtype is no other within a call
        dtype = "none yet" if own is None else own.dtype.name
        if dtype in _STEPS and not getattr(variable, _ATTRIBUTE, False):
            setattr(variable, _ATTRIBUTE, True)
            short.append(dtype)
    if short:
        warnings.warn(
            f"{owner} trains weights in {short[0]}, and rounds each step to it: a step of less "
            f"than about 1/{2 * _STEPS[short[0]]} of a weight changes nothing, and the loss stops "
            "falling where it would go on with float32 weights. Take dtype='mixed_bfloat16' (or "
            "the policy of that name), which computes in bfloat16 and keeps weights in float32.",
            RuntimeWarning,
            stacklevel=3,
        )
