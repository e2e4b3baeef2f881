# SPDX-License-Identifier: Apache-2.0
"""The check of a file of weights against the variables that it is loaded into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def check_saved_shapes(owner: str, variables: Sequence[Any], store: Mapping[str, Any]) -> None:
    """Refuses saved arrays of other shapes, before the first one is assigned.

    Args:
        owner: Whose variables they are, for the error.
        variables: Keras variables, in the order in which they were saved.
        store: What Keras hands to `load_own_variables`: arrays by the number of the variable.

    Raises:
        ValueError: A shape differs; all that differ are named.
    """
    wrong = [
        f"{variable.path} has shape {tuple(variable.shape)}, saved was {tuple(store[name].shape)}"
        for name, variable in ((str(i), variable) for i, variable in enumerate(variables))
        if name in store and tuple(store[name].shape) != tuple(variable.shape)
    ]
    if wrong:
        raise ValueError(
            f"the saved weights must have the shapes of {owner}; got {'; '.join(wrong)}: it was "
            "saved with other arguments. They are left as they were; other layers, which Keras "
            "loads apart from them, may not be."
        )
