# SPDX-License-Identifier: Apache-2.0
"""A warning about weights of 16 bits, in which small steps are lost."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from tfx_largeout.distribute.data_parallel import with_parts
from tfx_largeout.keras_internals import variable_behind

_STEPS = {"bfloat16": 256, "float16": 2048}  # numbers between a power of 2 and the next
_ATTRIBUTE = "_tfx_largeout_is_known_short"


def warn_of_short_weights(owner: str, variables: Iterable[Any], optimizer: Any) -> None:
    """Warns, once per variable, about training variables of 16 bits.

    Args:
        owner: The name of their owner, for the message.
        variables: Keras variables; only 16-bit variables matter.
        optimizer: The optimizer, or None. There is no warning if it, or a part of it,
            `keeps_small_steps` (a `RowOptimizer`).
    """
    if any(getattr(part, "keeps_small_steps", False) for part in with_parts(optimizer)):
        return
    short = []
    for variable in variables:
        own = variable_behind(variable)  # its dtype does not change within a call
        dtype = "none yet" if own is None else own.dtype.name
        if dtype in _STEPS and not getattr(variable, _ATTRIBUTE, False):
            setattr(variable, _ATTRIBUTE, True)
            short.append(dtype)
    if short:
        warnings.warn(
            f"{owner} trains weights in {short[0]}, and rounds each step to it: a step of less "
            f"than about 1/{2 * _STEPS[short[0]]} of a weight changes nothing, and the loss stops "
            "falling where it would go on with float32 weights. Use dtype='mixed_bfloat16' (or "
            "the policy of that name), which computes in bfloat16 and keeps weights in float32; or "
            "a row optimizer with stochastic_rounding=True or compensation=True, such as "
            "RowAdagrad, with which bfloat16 weights lose no step on average.",
            RuntimeWarning,
            stacklevel=3,
        )
