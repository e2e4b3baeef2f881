# SPDX-License-Identifier: Apache-2.0
"""Checks whether a head fits into memory: before it is built, and before the first step."""

from __future__ import annotations

import math
from typing import Any

from tfx_largeout.arguments import full_name
from tfx_largeout.memory import refuse_what_is_too_large, sum_of, warn_of_what_is_too_large
from tfx_largeout.memory import text_of_bytes as text
from tfx_largeout.optimizers.optimizer_memory import OptimizerMemory


def check_room(head: Any, width: int, examples: int | None) -> None:
    """Raises an error if weights and state don't fit into memory; warns if a step doesn't.

    Args:
        head: A head that is about to be built.
        width: D.
        examples: N, the examples of a step, if known.

    Raises:
        MemoryError: Weights, state and index need more than the available memory.
    """
    try:
        weights = head.weights_of(width, head.workers.size)
    except ValueError:  # a head or an optimizer without such a method
        return
    owner = full_name(head)
    refuse_what_is_too_large(owner, weights, lambda available: _smaller(head, width, available))
    step = OptimizerMemory(None).step(examples or 1, 1)
    memory = head.memory_of_step(width, step, head.workers.size)
    warn_of_what_is_too_large(owner, weights, memory, lambda a: _smaller(head, width, a))


def check_room_for_step(head: Any, optimizer: Any, examples: int | None) -> None:
    """Checks a head that is built, with the state of a model's optimizer that is not yet built.

    Raises:
        MemoryError: The optimizer's state for the weights needs more than the available memory.
    """
    of_optimizer = OptimizerMemory(optimizer)
    try:
        weights = head.weights_of(head.width, head.workers.size)
        trained = [weight for weight in weights if weight.is_trained]
        made = [] if optimizer.built else trained
        slots = [slot for weight in made for slot in of_optimizer.slots_of(weight)]
    except ValueError:  # as above
        return
    if not trained:
        return
    owner = f"{full_name(optimizer)} for {full_name(head)}"
    refuse_what_is_too_large(owner, slots, lambda available: _SMALLER_OF_DENSE)
    step = of_optimizer.step(examples or 1, 1)
    memory = head.memory_of_step(head.width, step, head.workers.size)
    memory = memory.with_optimizer(step, trained)._replace(building=0)
    owner = full_name(head)
    warn_of_what_is_too_large(owner, slots, memory, lambda available: _SMALLER_OF_DENSE)


_SMALLER_OF_DENSE = [
    "a SampledHead or an ExactSoftmaxHead with RowSGD, which have no gradient of all of W",
    "a smaller batch",
]


def _smaller(head: Any, width: int, available: int) -> list[str]:
    """Returns alternatives that need less memory, each with its bytes."""
    weights = head.weights_of(width, head.workers.size)
    needed, of_w = sum_of(weights), sum_of(weights, "weights")
    state = sum_of(weights, "optimizer")
    others = {
        "RowAdagrad(row_wise=True)": needed - state + 8 * head.num_classes // head.workers.size,
        "RowSGD (no state)": needed - state,
        "a FactoredHead": 4 * head.num_classes * width // head.workers.size,
    }
    if weights[0].dtype == head.variable_dtype == "float32" and head.short_weights:
        others["dtype='bfloat16'"] = needed - of_w // 2
    found = [f"{name}: {text(size)}" for name, size in others.items() if size < 0.9 * needed]
    if head.spreads_classes:
        workers = max(head.workers.size * math.ceil(needed / max(available, 1)), 2)
        of_each = sum_of(head.weights_of(width, workers))
        found.append(f"{workers} workers (tlo.distribute): {text(of_each)} each")
    return found or ["fewer classes, or a lesser width"]
