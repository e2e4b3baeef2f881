# SPDX-License-Identifier: Apache-2.0
"""AutoNumSampled: as many candidates as the gradient needs, chosen anew while W is trained."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras

from tfx_largeout.arguments import integer_argument, integers_argument, number_argument
from tfx_largeout.callbacks.choose_num_sampled import gradient_errors, sampled_head_of

_FIRST_EPOCHS = (0, 1)


class AutoNumSampled(keras.callbacks.Callback):
    """Gives the head the smallest S whose gradient is within a tolerance of the exact one.

    At the beginning of the epochs 0, 1, 2, 4, 8 and so on, or of those in `epochs`, S is chosen as
    `choose_num_sampled` does it, and where it is another one, the training step is traced anew.
    Which epochs these are does not depend on time: the same run has the same S. If no S that is
    tried meets the tolerance, it is the greatest of them, and there is a warning, once.

    The sampler with its S is part of the head's configuration and saved with it. From the first
    choice on, the logs of each epoch have `num_sampled` and `num_sampled_error`; `history` has each
    choice. To go on from a `Checkpoint`, name it there, and put it first: `Checkpoint(...,
    callbacks=[auto])`, which saves x and y, if they are arrays, with each checkpoint.

    Cost: as `choose_num_sampled`, log2 of the number of epochs times, and at most as many traces.

    Args:
        x: As `choose_num_sampled`.
        y: As `choose_num_sampled`.
        tolerance: As `choose_num_sampled`.
        sizes: As `choose_num_sampled`. A greatest one bounds the time of a step.
        draws: As `choose_num_sampled`.
        epochs: The numbers of the epochs, from 0. Default None: 0, 1, 2, 4, 8, ...

    Raises:
        ValueError: An argument is out of range; in training, one of `sizes` is above C.
        TypeError: When training begins: as `choose_num_sampled`.
        RuntimeError: When training begins: the classes are spread over several workers.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        tolerance: float,
        sizes: Sequence[int] | None = None,
        draws: int = 8,
        epochs: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.x, self.y = x, y
        self.tolerance = number_argument("tolerance", tolerance, above=0)
        self.sizes = None if sizes is None else integers_argument("sizes", sizes, 1)
        self.draws = integer_argument("draws", draws, at_least=2)
        self.epochs = None if epochs is None else integers_argument("epochs", epochs, 0)
        self.history: list[dict[str, Any]] = []
        self._warned = False
        self._head: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.history = []  # a Checkpoint behind this callback puts that of its run back
        self._head = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        is_chosen = any(choice["epoch"] == epoch for choice in self.history)
        if self._is_due(epoch) and not is_chosen:
            self._choose(epoch)
        if self.history:
            self._take(self.history[-1]["num_sampled"])

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None and self.history:
            logs["num_sampled"] = self.history[-1]["num_sampled"]
            logs["num_sampled_error"] = self.history[-1]["error"]

    def _is_due(self, epoch: int) -> bool:
        if self.epochs is not None:
            return epoch in self.epochs
        return epoch in _FIRST_EPOCHS or epoch.bit_count() == 1

    def _choose(self, epoch: int) -> None:
        asked_by = type(self).__name__
        errors = gradient_errors(
            self.model, self.x, self.y, self.tolerance, self.sizes, self.draws, asked_by
        )
        num_sampled, found = list(errors.items())[-1]
        self.history.append({"epoch": epoch, "num_sampled": num_sampled, **found._asdict()})
        if not found.meets(self.tolerance) and not self._warned:
            self._warned = True
            warnings.warn(
                f"no number of candidates that was tried meets tolerance={self.tolerance:g}; "
                f"training takes the greatest, {num_sampled}, with an error of {found.error:.3g}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _take(self, num_sampled: int) -> None:
        if self._head is None:
            self._head = sampled_head_of(self.model, self.x, type(self).__name__)
        if num_sampled != self._head.sampler.size:
            self._head.set_num_sampled(num_sampled)
            self.model.make_train_function(force=True)
