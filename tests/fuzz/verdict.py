# SPDX-License-Identifier: Apache-2.0
"""Whether the result of a call is right."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from fuzz.calls import Call, Outcome

# Sums of at most some hundred products of numbers near 1, in another order: their errors are a
# hundred roundings or so (2^-24 of a sum of up to some hundred), which a division by no less than
# 0.3 (the square root of the slots' initial value) hardly changes. The step of the factored layer
# solves a system of equations whose condition is 10 at most, and multiplies thrice.
_TOLERANCES = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-9}
_FACTORED_TOLERANCES = {np.dtype(np.float32): 5e-3, np.dtype(np.float64): 1e-9}
# Factors next to the middle of two numbers of bfloat16 may be rounded either way.
_ROUNDED_TOLERANCES = {np.dtype(np.float32): 1e-2, np.dtype(np.float64): 1e-9}
_BFLOAT16_TOLERANCE = 2**-7  # a number of 8 bits may be rounded to the next one

_REFUSALS = (tf.errors.InvalidArgumentError, ValueError, TypeError)


def finding(call: Call, op: Outcome, composed: Outcome | None) -> str | None:
    """Returns what is wrong, or None.

    Args:
        call: The call.
        op: Its result.
        composed: Its result with TensorFlow's own ops; None: these were not called.
    """
    found = _of_op(call, op)
    if found is None and composed is not None:
        found = _of_composed(call, op, composed)
    return found


def _of_op(call: Call, op: Outcome) -> str | None:
    if op.error is None:
        return None
    if not call.notes:
        return f"a call that is in order was refused: {_text(op.error)}"
    if not isinstance(op.error, tf.errors.InvalidArgumentError):
        # An output may be larger than the memory.
        if not isinstance(op.error, tf.errors.ResourceExhaustedError):
            return f"the op raised {_text(op.error)}"
    elif "Empty resource handle" in str(op.error):
        pass  # TensorFlow looks at handles before the op does
    elif not any(name in str(op.error) for name in (*call.inputs, *call.attributes)):
        return f"the error names no argument: {op.error}"
    return f"after an error, these have changed: {op.changed()}" if op.changed() else None


def _of_composed(call: Call, op: Outcome, composed: Outcome) -> str | None:
    if composed.error is not None and not isinstance(composed.error, _REFUSALS):
        return f"composed ops raised {_text(composed.error)}"
    if composed.error is not None and composed.changed():
        return f"composed ops raised {_text(composed.error)}, and changed {composed.changed()}"
    if (op.error is None) != (composed.error is None):
        if composed.error is None and "they are damaged" in str(op.error):
            return None  # damage of derived state that endangers memory, which ops alone see
        wild = ("lambda_max", "sums over the batch")
        if not call.is_tame and any(word in f"{op.error} {composed.error}" for word in wild):
            return None  # numbers that are rounded, or beyond the dtype, in another order
        return f"the op: {_text(op.error)}; composed ops: {_text(composed.error)}"
    if op.error is not None or not call.is_tame:
        return None
    pairs = list(zip(op.outputs, composed.outputs, strict=True))
    if call.op in ("TfxBoundedTopK", "TfxProbedTopK"):
        pairs.pop()  # the number of classes read, which differs
    is_rounded = call.op == "TfxSoftmaxUpdate" and call.attributes["products"] == "bfloat16"
    tolerances = _ROUNDED_TOLERANCES if is_rounded else _TOLERANCES
    if call.op.startswith("TfxFactored"):
        tolerances = _FACTORED_TOLERANCES
        pairs.append((_weights_of(op.after), _weights_of(composed.after)))
    else:
        pairs += [(array, composed.after[name]) for name, array in op.after.items()]
    for got, want in pairs:
        difference = _difference(got, want, tolerances)
        if difference is not None:
            return f"results differ: {difference}"
    return None


def _text(error: Exception | None) -> str:
    return "accepted" if error is None else f"{type(error).__name__}: {error}"


def _difference(got: np.ndarray, want: np.ndarray, tolerances: dict) -> str | None:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {got.shape}, composed {want.dtype} {want.shape}"
    if got.dtype == tf.bfloat16.as_numpy_dtype:
        tolerance = _BFLOAT16_TOLERANCE
    else:
        tolerance = tolerances.get(got.dtype, 0)
    if tolerance == 0:
        return None if np.array_equal(got, want) else f"{got!r}, composed {want!r}"
    got, want = got.astype(np.float64), want.astype(np.float64)
    scale = np.abs(np.where(np.isfinite(want), want, 0)).max(initial=1)
    if np.allclose(got, want, rtol=0, atol=tolerance * scale, equal_nan=True):
        return None
    return f"by up to {np.nanmax(np.abs(got - want)) / scale} of {scale}: {got!r}, {want!r}"


def _weights_of(state: dict[str, np.ndarray]) -> np.ndarray:
    """Returns W of a factored state, in its dtype."""
    wide = {name: array.astype(np.float64) for name, array in state.items()}
    transitions = wide["transitions"][state["row_slot"]]
    rows = np.einsum("cd,cde->ce", wide["v"], transitions)
    return (rows @ wide["u"] + wide["shift"]).astype(state["v"].dtype)
