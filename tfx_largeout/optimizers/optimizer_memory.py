# SPDX-License-Identifier: Apache-2.0
"""OptimizerMemory: the memory that an optimizer needs for a weight, without allocating it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras

from tfx_largeout.distribute.data_parallel import adds_up, with_parts
from tfx_largeout.keras_internals import optimizer_like
from tfx_largeout.memory import StepSize, Weight
from tfx_largeout.optimizers.fused_adam import FusedAdam
from tfx_largeout.optimizers.row_optimizer import SHORT_OPTIONS, RowOptimizer

_PRIMES = (5, 7, 11, 13, 17, 19)  # dimensions of a small weight, one per dimension of the real one


class OptimizerMemory:
    """The slots of a Keras optimizer for weights of any shape, and the memory of its step.

    A copy of the optimizer is built for a small weight with distinct prime dimensions. The shapes
    of its slots then tell which dimensions of a weight a slot has, for any optimizer.

    Args:
        optimizer: An optimizer, built or not, or a Keras identifier such as `"adam"`. None: there
            are no slots.
    """

    def __init__(self, optimizer: Any) -> None:
        if optimizer is not None:
            optimizer = with_parts(keras.optimizers.get(optimizer))[-1]
        self._optimizer = optimizer
        self._known: dict[tuple[int, str], list[Weight]] = {}

    def slots_of(self, weight: Weight) -> list[Weight]:
        """Returns a `Weight` of the part `"optimizer"` for each slot of a weight.

        Scalars of the whole optimizer (counts, rates) are left out.
        """
        rank = len(weight.shape)
        if self._optimizer is None or rank == 0 or rank > len(_PRIMES):
            return []
        real = dict(zip(_PRIMES, weight.shape, strict=False))
        return [
            slot._replace(shape=tuple(real.get(size, size) for size in slot.shape))
            for slot in self._of_small(rank, weight.dtype)
        ]

    def step(self, examples: int, labels: int) -> StepSize:
        """Returns the memory of a step with temporaries; for Keras's optimizers it is measured."""
        kind = self._optimizer
        adds = adds_up(kind)
        if isinstance(kind, RowOptimizer):
            return StepSize(examples, labels, True, 1 + len(kind.rule.slots), adds)
        if isinstance(kind, FusedAdam):
            return StepSize(examples, labels, False, 0, adds)
        if isinstance(kind, keras.optimizers.SGD):
            return StepSize(examples, labels, not kind.momentum, 1, adds)
        return StepSize(examples, labels, False, 0 if kind is None else 2, adds)

    def _of_small(self, rank: int, dtype: str) -> list[Weight]:
        if (rank, dtype) not in self._known:
            try:
                # A traced function would record variables and be traced again; while Keras infers
                # shapes it creates none. Another thread has no such scopes.
                with ThreadPoolExecutor(1) as thread:
                    slots = thread.submit(self._make_small, rank, dtype).result()
            except Exception as error:
                raise ValueError(
                    "optimizer must be one that its get_config makes again, for its memory to be "
                    f"known; got {self._optimizer!r}, and {type(error).__name__}: {error}"
                ) from error
            self._known[rank, dtype] = [
                slot._replace(is_trained=False) for slot in slots if slot.shape
            ]
        return self._known[rank, dtype]

    def _make_small(self, rank: int, dtype: str) -> list[Weight]:
        # Options for bfloat16 may serve other weights of the model.
        off = set[str]() if dtype == "bfloat16" else SHORT_OPTIONS
        small = keras.Variable(keras.initializers.Zeros(), _PRIMES[:rank], dtype, name="weight")
        like = optimizer_like(self._optimizer, off)
        like.build([small])
        return [Weight.of(each, "optimizer") for each in like.variables]
